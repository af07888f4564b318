// One model divided over several members, each with a backend and a memory of its own, so that every bit is
// that of one device.
//
//   member i of N has   heads [i h/N, (i+1) h/N), the KV heads that they ask, and their pages
//                       rows of gate and up [i I/N, ...),  rows of o and down [i H/N, ...)
//
//   x_attn -> own heads of attention -> all x_o -> own columns of o -> all of them, added to h;
//   the MLP likewise
//
// No sum is ever cut: each linear is divided by its outputs and reads its whole input, which the members put
// together first. A column of a linear does not depend on which others there are (tests/kernels/backend), so
// a member computes the bits that one device would; cutting o and down along their inputs instead, as is
// usual, needs half the exchanges and sums in another order. The residual stream, norms and the rope tables
// are on every member. Four exchanges a block (device/exchange.h).
#pragma once
#include <cstdint>

#include "model/model_spec.h"

namespace llmq {

// What each of `members` runs: heads, KV heads, the width of the MLP and the outputs of the linears divided.
// Error(kUsage) where one of them or the hidden size cannot be, a norm goes over all heads of q or k, or a
// block has a mixture of experts, a gated delta net or gated attention, naming it and the numbers that would
// do.
ModelSpec member_spec(const ModelSpec& spec, std::int64_t members);

}  // namespace llmq
