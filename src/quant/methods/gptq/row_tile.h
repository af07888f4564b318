// A tile of rows on its way through the rounding: element (place, row) at place * rows + row
// (kernels/common/row_tile.h). Rows beyond the last of the weight are zero.
#pragma once
#include <cstdint>
#include <vector>

#include "device/host_tiles.h"

namespace llmq {

struct RowTile {
  RowTile(std::int64_t columns, std::int64_t groups)
      : rows(host_tile_rows()),
        weight(static_cast<std::size_t>(columns * rows)),
        difference(weight.size()),
        steps(weight.size()),
        scale(static_cast<std::size_t>(groups * rows)),
        zero(scale.size()) {}

  float* scale_of(std::int64_t group) { return scale.data() + group * rows; }
  float* zero_of(std::int64_t group) { return zero.data() + group * rows; }

  std::int64_t rows;
  std::vector<float> weight, difference, steps;  // [places, rows]
  std::vector<float> scale, zero;                // [groups, rows]
};

}  // namespace llmq
