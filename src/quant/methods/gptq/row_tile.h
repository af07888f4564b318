// A tile of rows on its way through the rounding: element (place, row) at place * rows + row
// (kernels/common/row_tile.h). Rows beyond the last of the weight are zero.
#pragma once
#include <cstdint>
#include <vector>

#include "device/host_tiles.h"
#include "quant/methods/gptq/column_panels.h"

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

  // Of values [places, rows], from a place on.
  float* at(std::vector<float>& values, std::int64_t place) const { return values.data() + place * rows; }
  // A block of columns with its own factors in `panels`; what is carried to it, the top code and what a
  // search asks for besides are left to set.
  TileColumns columns_of(const ColumnPanels& panels, const ColumnBlock& block, const ColumnOrder& order) {
    TileColumns columns;
    columns.columns = columns.factor_row = block.width;
    columns.factors = panels.at(block.begin, block);
    columns.weight = at(weight, block.begin);
    columns.steps = at(steps, block.begin);
    columns.difference = at(difference, block.begin);
    columns.scale = scale.data();
    columns.zero = zero.data();
    columns.group = order.group.data() + block.begin;
    return columns;
  }

  std::int64_t rows;
  std::vector<float> weight, difference, steps;  // [places, rows]
  std::vector<float> scale, zero;                // [groups, rows]
};

}  // namespace llmq
