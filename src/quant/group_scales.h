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

#include "device/host_tiles.h"
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

// Scales times 1 + i step for |i| <= moves; asymmetric: the best of them with the zero one up and one down too.
struct ScaleTrials {
  int moves;
  float step;
};
inline constexpr ScaleTrials kCoarseTrials{3, 0.04f}, kFineTrials{2, 0.015f};

struct TileGrid {
  float* scale = nullptr;  // one per row; in: where to start, out: the best
  float* zero = nullptr;
  float* loss = nullptr;  // written: the best one's; may be null
};

// Tries scales and zeros around those of `grid`, to which columns.scale and columns.zero lead, each by rounding all
// the columns with error feedback: loss = sum_k cost[k] (v_k - value)^2, what it costs when all that is left over is
// made good by the columns after. columns.carried is what comes into the columns; it is read only.
void try_group_scales(TileColumns columns, const TileGrid& grid, const ScaleTrials& trials,
                      const QuantScheme& scheme);

}  // namespace llmq
