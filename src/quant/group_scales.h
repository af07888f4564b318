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

namespace llmq {

struct TileGroup {
  const float* weight = nullptr;      // [columns][host_tile_rows()]
  const float* importance = nullptr;  // per column
  std::int64_t columns = 0;
  float* scale = nullptr;  // written: one per row
  float* zero = nullptr;
};

void choose_group_scales(const TileGroup& group, const QuantScheme& scheme, const GptqOptions& options);

}  // namespace llmq
