#include "quant/methods/gptq/host_rows.h"

#include <algorithm>

#include "quant/methods/gptq/group_scales.h"

namespace llmq {

std::uint64_t gptq_host_bytes(std::uint64_t columns, std::uint64_t threads) {
  // Weights, differences and steps, and again as they change their order; rows of a tile of the widest
  // vectors that are common.
  constexpr std::uint64_t kTileArrays = 6, kTileRows = 16;
  return 6 * columns * columns + columns * BlockCholesky::kColumnBytes +
         threads * columns * kTileRows * kTileArrays * sizeof(float);
}

std::vector<float> GptqInput::importance_by_column() const {
  std::vector<float> by_column(importance.size());
  for (std::size_t place = 0; place < by_column.size(); ++place)
    by_column[static_cast<std::size_t>(order.columns[place])] = importance[place];
  return by_column;
}

std::vector<std::int32_t> GptqInput::marked(const ColumnOrder& of) const {
  std::vector<std::int32_t> columns = of.columns;
  for (std::int32_t& column : columns)
    if (dead[static_cast<std::size_t>(column)] != 0) column = ~column;
  return columns;
}

std::vector<std::int32_t> GptqInput::places_of_runs() const {
  std::vector<std::int32_t> place_of(order.columns.size()), places;
  for (std::size_t p = 0; p < place_of.size(); ++p)
    place_of[static_cast<std::size_t>(order.columns[p])] = static_cast<std::int32_t>(p);
  for (const std::int32_t column : runs.columns) places.push_back(place_of[static_cast<std::size_t>(column)]);
  return places;
}

GptqRows::GptqRows(const GptqLinear& linear, const RoundingProblem& problem, std::int64_t first_row)
    : linear_(linear),
      problem_(problem),
      first_row_(first_row),
      rows_(std::min(host_tile_rows(), problem.out_features - first_row)),
      size_(problem.in_features),
      group_(linear.scheme.group_of(size_)),
      groups_((size_ + group_ - 1) / group_),
      tile_(size_, groups_) {}

void GptqRows::run() {
  start();
  linear_.each_block([&](const ColumnBlock& block, std::int64_t end) {
    if (end > 0)
      choose_scales(block, end);  // leaves what the block carries
    else
      carry(block, carried_);
    host_tile_round(columns_of(block, carried_));
  });
  if (!linear_.input.is_fitted) return;
  change_order();
  GroupDescent(linear_.input.descent, grid_rule(linear_.scheme), tile_).run();
}

void GptqRows::start() {
  read_weight(linear_.input.order, tile_);
  if (!linear_.fixed.empty())
    fix_grid();
  else if (linear_.input.order.run_begin.empty())
    choose_all_scales();
}

void GptqRows::read_weight(const ColumnOrder& order, RowTile& tile) const {
  for (std::int64_t r = 0; r < rows_; ++r) {
    const float* const from = problem_.weight.data() + (first_row_ + r) * size_;
    for (std::int64_t place = 0; place < size_; ++place) {
      const auto column = static_cast<std::size_t>(order.columns[static_cast<std::size_t>(place)]);
      if (linear_.input.dead[column] == 0)
        tile.weight[static_cast<std::size_t>(place * tile.rows + r)] = from[column];
    }
  }
}

void GptqRows::fix_grid() {
  std::fill(tile_.scale.begin(), tile_.scale.end(), linear_.fixed[0].scale);
  std::fill(tile_.zero.begin(), tile_.zero.end(), linear_.fixed[0].zero);
}

// Each group's from the weights as they are, before anything is rounded.
void GptqRows::choose_all_scales() {
  RowTile plain(size_, 0);
  read_weight(linear_.input.runs, plain);
  const std::vector<float> importance = linear_.input.importance_by_column();
  for (std::int64_t g = 0; g < groups_; ++g) {
    const std::int64_t begin = g * group_;
    choose_group_scales({plain.at(plain.weight, begin), importance.data() + begin,
                         std::min(group_, size_ - begin), tile_.scale_of(g), tile_.zero_of(g)},
                        linear_.candidates());
  }
}

// carried = what the columns before the block leave to it.
void GptqRows::carry(const ColumnBlock& block, std::vector<float>& carried) {
  carried.resize(static_cast<std::size_t>(block.width * tile_.rows));
  host_tile_product(carried.data(), linear_.input.unit_upper.at(0, block), block.width, block.width,
                    tile_.difference.data(), block.begin, false);
}

TileColumns GptqRows::columns_of(const ColumnBlock& block, std::vector<float>& carried) {
  TileColumns columns = tile_.columns_of(linear_.input.unit_upper, block, linear_.input.order);
  columns.carried = carried.data();
  columns.top = static_cast<float>(linear_.scheme.code_count() - 1);
  return columns;
}

// A group's scale comes from its weights with the errors so far made good as far as they can be, w + x with
//   x_k = sum_{j before the group} D_j L_jk - sum_{j < k in it} x_j L_jk;
// the places of the group hold -x until it is rounded.
void GptqRows::choose_scales(const ColumnBlock& first, std::int64_t end) {
  carry(first, carried_);
  if (first.begin > 0) {
    std::vector<float> solved;
    for (const ColumnBlock& block : linear_.blocks_until(first, end)) {
      if (block.begin == first.begin)
        solved = carried_;
      else
        carry(block, solved);
      host_tile_solve(columns_of(block, solved));
    }
  }
  fit_scales(first, end);
}

void GptqRows::fit_scales(const ColumnBlock& first, std::int64_t end) {
  const auto count = static_cast<std::size_t>((end - first.begin) * tile_.rows);
  std::vector<float> current(tile_.at(tile_.weight, first.begin),
                             tile_.at(tile_.weight, first.begin) + count);
  if (first.begin > 0) {
    const float* const x = tile_.at(tile_.difference, first.begin);
    for (std::size_t i = 0; i < count; ++i) current[i] -= x[i];
  }
  const std::int64_t group = linear_.input.order.group[static_cast<std::size_t>(first.begin)];
  choose_group_scales({current.data(), linear_.input.importance.data() + first.begin, end - first.begin,
                       tile_.scale_of(group), tile_.zero_of(group)},
                      linear_.candidates());
  if (!linear_.tries(first, end)) return;
  TileColumns columns = columns_of(first, carried_);
  columns.cost = linear_.input.cost.data() + first.begin;
  try_group_scales(columns, {tile_.scale_of(group), tile_.zero_of(group), nullptr}, kCoarseTrials,
                   grid_rule(linear_.scheme));
}

void GptqRows::change_order() {
  if (!linear_.input.changes_order()) return;
  const std::vector<std::int32_t> places = linear_.input.places_of_runs();
  for (std::vector<float>* values : {&tile_.weight, &tile_.difference, &tile_.steps}) {
    std::vector<float> old = *values;
    for (std::int64_t p = 0; p < size_; ++p)
      std::copy_n(tile_.at(old, places[static_cast<std::size_t>(p)]), tile_.rows, tile_.at(*values, p));
  }
}

void GptqRows::write(QuantizedMatrix& matrix) {
  const ColumnOrder& order = linear_.input.is_fitted ? linear_.input.runs : linear_.input.order;
  for (std::int64_t r = 0; r < rows_; ++r) {
    const std::int64_t row = first_row_ + r;
    for (std::int64_t g = 0; g < groups_; ++g) {
      const auto i = static_cast<std::size_t>(row * groups_ + g);
      matrix.scales[i] = tile_.scale_of(g)[r];
      matrix.zeros[i] = static_cast<std::uint8_t>(tile_.zero_of(g)[r]);
    }
    for (std::int64_t place = 0; place < size_; ++place) {
      const auto column = static_cast<std::size_t>(order.columns[static_cast<std::size_t>(place)]);
      const float zero = tile_.zero_of(order.group[static_cast<std::size_t>(place)])[r];
      const float steps =
          linear_.input.dead[column] != 0 ? 0 : tile_.steps[static_cast<std::size_t>(place * tile_.rows + r)];
      matrix.codes[static_cast<std::size_t>(row * size_) + column] = static_cast<std::uint8_t>(steps + zero);
    }
  }
}

}  // namespace llmq
