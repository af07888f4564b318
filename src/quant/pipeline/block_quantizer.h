// Quantizes the linears of one block in the order in which their inputs arise, and carries the samples
// through with the quantized weights.
//
//   The readers of a site are quantized behind its statistics, and behind the fold of its norm.
//   A linear whose rows make a later site waits for that site's scale.
//
// What this gives for Llama (folds: AWQ's or SmoothQuant's scales, or none):
//
//   x_attn: statistics, fold norm -> q,k,v; q, k quantized
//   x_o:    statistics of some samples with v as it is, fold v -> o; v quantized; statistics, o quantized;
//           residual += o(attention)
//   x_mlp:  statistics, fold norm -> gate,up; gate quantized
//   x_down: statistics of some samples with up as it is, fold up -> down; up quantized; statistics, down
//           quantized; residual += down(gated)
//
// So every linear is quantized on inputs that carry the error of all linears before it; a scale of o or down
// is chosen on some of the samples, which run twice up to there, and judged once more in the report.
//
// The experts of a mixture have an order of their own (quant/pipeline/experts/mixture_quantizer.h).
//
// What loses more than rounding to nearest would is rounded to nearest, and the report says so.
//
// A fold is taken only when every reader, and a producer that is a linear, is quantized: what the recipe
// leaves alone keeps its bytes.
#pragma once
#include "quant/pipeline/quantize_run.h"

namespace llmq {

void quantize_block_on_samples(QuantizeRun& run, int block, ActivationStream& stream);
void quantize_block_by_rounding(QuantizeRun& run, int block);
// The linears of plan.tower.
void round_tower(QuantizeRun& run);

}  // namespace llmq
