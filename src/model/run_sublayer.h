// The one walk over a decoder block. Evaluation, generation and calibration run exactly this; calibration
// taps it where the inputs of linears arise, takes statistics, and swaps a linear's weight for its quantized
// one.
//
//   x = before(h)                the input of the sublayer's first site
//   inner = mixer(x)             model/mixers/
//   h += residual_scale * after(output(inner)), or after(inner) where the mixer has outputs of its own
//
// A sublayer that joins the next one adds nothing by itself: it runs within that one, on the same rows of h,
// and h grows by joint(what the one gives + what the other gives).
//
// A mixer that stands beside another reads the same x: h grows by both outputs, one after the other.
//
// Several members (model/divided_block.h) run it together: each computes its own columns of `inner` and of
// the output, and all of them are put together before anybody reads them, so no sum is ever cut.
#pragma once
#include <span>

#include "device/exchange.h"
#include "model/forward_context.h"
#include "model/mixers/tap.h"

namespace llmq {

// h += the output of sublayer `part` of the block, for all rows of the batch; on each member alike. A
// sublayer whose rows do not see one another goes through its wide stages in chunks of rows.
void run_sublayer(std::span<const MemberBlock> members, int block, std::size_t part, const BatchRows& rows,
                  Exchange& exchange);
// The same on one member, past `tap`, rows as a whole. False where the tap stopped it.
bool run_sublayer(const MemberBlock& member, int block, std::size_t part, const BatchRows& rows, Tap& tap);
// Only its last step: h += residual_scale * after(output(inner)), of an inner input that is there already; of
// a sublayer of one mixer.
void finish_sublayer(const MemberBlock& member, int block, std::size_t part, const BatchRows& rows,
                     const TensorView& inner);

// All sublayers of a block.
void run_block(std::span<const MemberBlock> members, int block, const BatchRows& rows, Exchange& exchange);
void run_block(const MemberBlock& member, int block, const BatchRows& rows);

}  // namespace llmq
