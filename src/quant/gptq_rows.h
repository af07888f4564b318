// GPTQ of a tile of rows (quant/gptq.h has the mathematics): all of it in host memory, or by steps where a device makes the products
// and rounds the columns (quant/device_rows.h). The codes are the same, bit for bit.
//
// Cost per row of K columns: as quant/gptq.h says; memory 12 bytes for each weight of the tile.
#pragma once
#include <cstdint>
#include <vector>

#include "quant/gptq.h"
#include "quant/group_descent.h"
#include "quant/rounding.h"

namespace llmq {

// What the device holds of a square: the panels, and by place the group and, for a descent, 1 / H_kk.
struct DevicePanels {
  Buffer values, group, inverse;
};

struct PanelsOnDevice {
  DevicePanels upper, square;  // of unit_upper; of the descent's square, where there is a descent
};

// What all rows of all linears that read an input share.
struct GptqInput final : PreparedInput {
  std::int64_t group = 0;
  bool is_fitted = false;         // scales and codes are fitted again: `runs` and `descent` are there
  ColumnOrder order, runs;        // of the rounding; with every group a run of places, for the descent
  std::vector<char> dead;         // by column
  std::vector<float> importance;  // diag H by place of `order`, dead ones 1
  ColumnPanels unit_upper;        // L by place of `order`
  std::vector<float> cost;        // R_kk^2 by place of `order`
  DescentProblem descent;         // by place of `runs`
  RoundingNotes notes;
  std::vector<PanelsOnDevice> on_devices;  // where devices round
};

// What all rows of a linear share.
struct GptqLinear {
  const GptqInput& input;
  const QuantScheme& scheme;
  const GptqOptions& options;
  std::vector<GroupGrid> fixed;  // per-tensor: the one grid

  // visit(block, end): end of the group whose scales are to be chosen when the block comes, 0 where there is none.
  template <class Visit>
  void each_block(const Visit& visit) const {
    const std::vector<std::int32_t>& runs = input.order.run_begin;
    std::size_t run = 0;
    for (const ColumnBlock& block : input.unit_upper.blocks()) {
      const bool begins = fixed.empty() && run < runs.size() && runs[run] == block.begin;
      visit(block, begins ? runs[++run] : 0);
    }
  }
  // The blocks of the group that ends at `end`: [first, last) of unit_upper.blocks().
  std::span<const ColumnBlock> blocks_until(const ColumnBlock& first, std::int64_t end) const {
    const std::size_t begin = input.unit_upper.first_block(first.begin), behind = input.unit_upper.first_block(end);
    return std::span(input.unit_upper.blocks()).subspan(begin, behind - begin);
  }
};

// Places are those of `order`, but for the descent, which has its own.
class GptqRows {
 public:
  GptqRows(const GptqLinear& linear, const RoundingProblem& problem, std::int64_t first_row);

  void run();  // everything but write()
  void write(QuantizedMatrix& matrix);

  // By steps. start(): weights, and the scales that are chosen before anything is rounded. fit_scales(): those of the group [first.begin,
  // end); carried() holds what the columns before leave to its first block, and the tile's differences hold -x of the group, where columns came before.
  void start();
  void fit_scales(const ColumnBlock& first, std::int64_t end);
  void change_order();  // from the places of `order` to those of `runs`
  RowTile& tile() { return tile_; }
  std::vector<float>& carried() { return carried_; }

 private:
  float* at(std::vector<float>& values, std::int64_t place) const { return values.data() + place * tile_.rows; }
  void read_weight(const ColumnOrder& order, RowTile& tile) const;
  void fix_grid();
  void choose_all_scales();
  void carry(const ColumnBlock& block, std::vector<float>& carried);
  TileColumns columns_of(const ColumnBlock& block, std::vector<float>& carried);
  void choose_scales(const ColumnBlock& first, std::int64_t end);

  const GptqLinear& linear_;
  const RoundingProblem& problem_;
  std::int64_t first_row_, rows_, size_, group_, groups_;
  RowTile tile_;
  std::vector<float> carried_;
};

}  // namespace llmq
