// Scale and zero of one group, for a tile of rows at once: the candidate that loses least,
//
//   loss = sum_k importance[k] (w_k - value(code(w_k)))^2
//
// Candidates: the range as it is; the range shrunk, both ends together or one alone (asymmetric); for a
// symmetric scheme shrunk or slightly widened, and the full range: scale = -w_m / 2^(b-1) with w_m the weight
// of largest magnitude, which then lies exactly on code 0 (such a scale may be negative). Every candidate is
// judged with the scale as it is stored. The first of equals wins.
#pragma once
#include <cstdint>

#include "quant/gptq.h"
#include "quant/row_tile.h"

namespace llmq {

// w [width, kTileRows]; importance [width]. Writes kTileRows scales and zeros.
void choose_group_scales(const float* w, const float* importance, std::int64_t width,
                         const QuantScheme& scheme, const GptqOptions& options, float* scale, float* zero);

}  // namespace llmq
