// Scale and zero of one group, for a tile of rows at once: the candidate (kernels/common/scale_search.h) that
// loses least,
//
//   loss = sum_k importance[k] (w_k - value(code(w_k)))^2
//
// Every candidate is judged with the scale as it is stored.
#pragma once
#include <cstdint>

#include "device/host_tiles.h"
#include "kernels/common/scale_search.h"

namespace llmq {

struct TileGroup {
  const float* weight = nullptr;      // [columns][host_tile_rows()]
  const float* importance = nullptr;  // per column
  std::int64_t columns = 0;
  float* scale = nullptr;  // written: one per row
  float* zero = nullptr;
};

void choose_group_scales(const TileGroup& group, const RangeCandidates& candidates);

struct TileGrid {
  float* scale = nullptr;  // one per row; in: where to start, out: the best
  float* zero = nullptr;
  float* loss = nullptr;  // written: the best one's; may be null
};

// Tries scales and zeros around those of `grid`, to which columns.scale and columns.zero lead, each by
// rounding all the columns with error feedback: loss = sum_k cost[k] (v_k - value)^2, what it costs when all
// that is left over is made good by the columns after. columns.carried is what comes into the columns; it is
// read only.
void try_group_scales(TileColumns columns, const TileGrid& grid, const ScaleTrials& trials,
                      const GridRule& rule);

}  // namespace llmq
