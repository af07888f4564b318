// GPTQ of a tile of rows (quant/methods/gptq/gptq.h has the mathematics) in host memory. A device rounds many
// rows at once (quant/methods/gptq/device_rows.h); the codes are the same, bit for bit.
//
// Cost per row of K columns: as quant/methods/gptq/gptq.h says; memory 12 bytes for each weight of the tile.
#pragma once
#include <cstdint>
#include <vector>

#include "quant/methods/gptq/coordinate_descent.h"
#include "quant/methods/gptq/gptq.h"
#include "quant/methods/rounding.h"

namespace llmq {

// What a device holds of a square: the panels, and the columns and groups of its places.
struct DevicePanels {
  Buffer values;
  Buffer column, group;  // by place; ~column where no input uses it
};

// What a device holds of an input: as GptqInput has it, and DescentProblem.
struct InputOnDevice {
  DevicePanels upper, square;             // of unit_upper; of the descent's square, where there is a descent
  Buffer importance, cost;                // by place of `order`
  Buffer column_importance;               // by column, where scales are chosen before anything is rounded
  Buffer inverse, row_sum;                // of the descent
  Buffer factors;                         // of each block that has them unit_upper, inverse, cost
  std::vector<std::size_t> factor_begin;  // by block: where in `factors`
};

// What all rows of all linears that read an input share.
struct GptqInput final : PreparedInput {
  std::int64_t group = 0;
  bool on_host = false;           // whatever the backend could do
  bool is_fitted = false;         // scales and codes are fitted again: `runs` and `descent` are there
  ColumnOrder order, runs;        // of the rounding; with every group a run of places, for the descent
  std::vector<char> dead;         // by column
  std::vector<float> importance;  // diag H by place of `order`, dead ones 1
  ColumnPanels unit_upper;        // L by place of `order`
  std::vector<float> cost;        // R_kk^2 by place of `order`
  DescentProblem descent;         // by place of `runs`
  RoundingNotes notes;
  std::vector<InputOnDevice> on_devices;  // where devices round

  std::vector<float> importance_by_column() const;
  // For each place of `runs`, the list has the place of the same column in `order`.
  std::vector<std::int32_t> places_of_runs() const;
  // Of each place of `of`, order or runs, its column, or ~column where no input uses it.
  std::vector<std::int32_t> marked(const ColumnOrder& of) const;
  bool changes_order() const { return is_fitted && order.columns != runs.columns; }
};

// What all rows of a linear share.
struct GptqLinear {
  const GptqInput& input;
  const QuantScheme& scheme;
  const GptqOptions& options;
  std::vector<GroupGrid> fixed;  // per-tensor: the one grid

  RangeCandidates candidates() const {
    return {grid_rule(scheme), options.full_range, options.scale_search != GptqOptions::ScaleSearch::kMinMax};
  }
  // Whether the scales of the group of places [first.begin, end) are tried by rounding it.
  bool tries(const ColumnBlock& first, std::int64_t end) const {
    return options.scale_search == GptqOptions::ScaleSearch::kFeedback && first.begin + first.width == end;
  }

  // visit(block, end): end of the group whose scales are to be chosen when the block comes, 0 where there is
  // none.
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
    const std::size_t begin = input.unit_upper.first_block(first.begin),
                      behind = input.unit_upper.first_block(end);
    return std::span(input.unit_upper.blocks()).subspan(begin, behind - begin);
  }
};

// What the rounding of linears with `columns` inputs holds in host memory: the Cholesky factor (FP64) and its
// panels (FP32), then those panels and the Gram matrix in the descent's order (FP32); the factors of blocks;
// and a tile of rows on each thread.
std::uint64_t gptq_host_bytes(std::uint64_t columns, std::uint64_t threads);

// Places are those of `order`, but for the descent, which has its own.
class GptqRows {
 public:
  GptqRows(const GptqLinear& linear, const RoundingProblem& problem, std::int64_t first_row);

  void run();  // everything but write()
  void write(QuantizedMatrix& matrix);

 private:
  void read_weight(const ColumnOrder& order, RowTile& tile) const;
  void start();
  void fix_grid();
  void choose_all_scales();
  void carry(const ColumnBlock& block, std::vector<float>& carried);
  TileColumns columns_of(const ColumnBlock& block, std::vector<float>& carried);
  void choose_scales(const ColumnBlock& first, std::int64_t end);
  void fit_scales(const ColumnBlock& first, std::int64_t end);
  void change_order();

  const GptqLinear& linear_;
  const RoundingProblem& problem_;
  std::int64_t first_row_, rows_, size_, group_, groups_;
  RowTile tile_;
  std::vector<float> carried_;
};

}  // namespace llmq
