// Drawing tokens where the logits lie, so that they need not come to the host: Extensions::token_drawer.
#pragma once
#include <cstdint>
#include <span>

#include "kernels/common/token_race.h"
#include "tensor/tensor_view.h"

namespace llmq {

class TokenDrawer {
 public:
  virtual ~TokenDrawer() = default;
  // tokens[i] drawn from row i of logits F32 [R, V] on the device as draws[i] says, as runtime/sampler.h
  // draws from the whole row: another token only where two arrive within the last bits of exp and log.
  virtual void draw_tokens(const TensorView& logits, std::span<const TokenDraw> draws,
                           std::span<std::int32_t> tokens) = 0;
};

}  // namespace llmq
