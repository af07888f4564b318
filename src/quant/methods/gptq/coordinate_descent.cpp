#include "quant/methods/gptq/coordinate_descent.h"

#include <algorithm>
#include <array>

#include "quant/methods/gptq/group_scales.h"

namespace llmq {
namespace {

using Lanes = std::array<float, kMostTileRows>;

}  // namespace

GroupDescent::GroupDescent(const DescentProblem& problem, const GridRule& rule, RowTile& tile)
    : problem_(problem), rule_(rule), tile_(tile), rows_(static_cast<std::size_t>(tile.rows)) {}

void GroupDescent::run() {
  problem_.each_group([&](std::int64_t begin, std::int64_t end) { visit(begin, end); });
}

// Y = D G on the columns of a block.
void GroupDescent::slopes(const ColumnBlock& block) {
  host_tile_product(tile_.at(y_, block.begin - begin_), problem_.square.at(0, block), block.width,
                    block.width, tile_.difference.data(), block.rows, false);
}

void GroupDescent::visit(std::int64_t begin, std::int64_t end) {
  group_ = problem_.order->group[static_cast<std::size_t>(begin)];
  begin_ = begin;
  width_ = end - begin;
  y_.resize(static_cast<std::size_t>(width_) * rows_);
  const std::span<const ColumnBlock> blocks = problem_.blocks_of(begin, end);
  for (const ColumnBlock& block : blocks) slopes(block);
  refit();
  if (problem_.sweeps == 0) return;
  for (const ColumnBlock& block : blocks) {
    if (block.begin > begin) slopes(block);  // what the blocks before changed
    host_tile_descend(columns_of(block));
  }
}

void GroupDescent::refit() {
  const std::int64_t end = begin_ + width_;
  if (const BlockCholesky* factor = problem_.factor_of(begin_, end); factor != nullptr)
    search_again(*factor, problem_.blocks_of(begin_, end).front());
  if (!problem_.scales) return;
  fit_scale();
  if (!rule_.symmetric) shift_zero();
}

// What a group's values lose beyond t is (t - value) G_gg (t - value)^T.
void GroupDescent::search_again(const BlockCholesky& factor, const ColumnBlock& block) {
  const std::size_t count = static_cast<std::size_t>(width_) * rows_;
  float* const scale = tile_.scale_of(group_);
  float* const zero = tile_.zero_of(group_);
  float* const steps = tile_.at(tile_.steps, begin_);
  for (std::vector<float>* scratch : {&target_, &fresh_, &spent_, &carried_}) scratch->resize(count);
  host_tile_product(target_.data(), factor.inverse.data(), width_, width_, y_.data(), width_, false);
  Lanes old_loss, least, old_scale, old_zero;
  host_tile_dot(old_loss.data(), y_.data(), target_.data(), width_);
  for (std::size_t i = 0, k = 0; k < static_cast<std::size_t>(width_); ++k)
    for (std::size_t r = 0; r < rows_; ++r, ++i) target_[i] += steps[i] * scale[r];
  std::copy_n(scale, rows_, old_scale.begin());
  std::copy_n(zero, rows_, old_zero.begin());
  TileColumns columns = columns_of(block);
  columns.factors = factor.unit_upper.data();
  columns.weight = target_.data();
  columns.steps = fresh_.data();
  columns.difference = spent_.data();
  columns.cost = factor.cost.data();
  columns.carried = carried_.data();
  std::fill(carried_.begin(), carried_.end(), 0.0f);
  try_group_scales(columns, {scale, zero, least.data()}, kFineTrials, rule_);
  host_tile_round(columns);
  bool any = false;
  for (std::size_t r = 0; r < rows_; ++r) {
    if (least[r] < old_loss[r]) {
      any = true;
      continue;
    }
    scale[r] = old_scale[r];
    zero[r] = old_zero[r];
    for (std::size_t i = r; i < count; i += rows_) fresh_[i] = steps[i];
  }
  if (!any) return;
  std::copy_n(fresh_.begin(), count, steps);
  float* const difference = tile_.at(tile_.difference, begin_);
  std::copy_n(difference, count, spent_.begin());
  take_differences();
  for (std::size_t i = 0; i < count; ++i) spent_[i] = difference[i] - spent_[i];
  host_tile_product(y_.data(), columns_of(block).factors, width_, width_, spent_.data(), width_, true);
}

void GroupDescent::fit_scale() {
  const float* const steps = tile_.at(tile_.steps, begin_);
  u_.resize(y_.size());
  for (const ColumnBlock& block : problem_.blocks_of(begin_, begin_ + width_))
    host_tile_product(tile_.at(u_, block.begin - begin_), problem_.square.at(begin_, block), block.width,
                      block.width, steps, width_, false);
  Lanes slope, curve, change{};
  host_tile_dot(slope.data(), y_.data(), steps, width_);
  host_tile_dot(curve.data(), u_.data(), steps, width_);
  float* const scale = tile_.scale_of(group_);
  for (std::size_t r = 0; r < rows_; ++r) {
    const ScaleChange fresh = refit_scale(scale[r], slope[r], curve[r], rule_.stored);
    scale[r] = fresh.scale;
    change[r] = fresh.change;
  }
  take_differences();
  host_tile_subtract(y_.data(), y_.data(), change.data(), u_.data(), width_);
}

// The code stays; steps = code - zero move against the zero.
void GroupDescent::shift_zero() {
  const auto width = static_cast<std::size_t>(width_);
  const float* const row_sum = problem_.row_sum.data() + begin_;
  float whole = 0;
  Lanes slope{}, move{};
  for (std::size_t i = 0, k = 0; k < width; ++k) {
    whole += row_sum[k];
    for (std::size_t r = 0; r < rows_; ++r, ++i) slope[r] += y_[i];
  }
  const float* const scale = tile_.scale_of(group_);
  float* const zero = tile_.zero_of(group_);
  bool any = false;
  for (std::size_t r = 0; r < rows_; ++r) {
    move[r] = zero_shift({scale[r], zero[r]}, slope[r], whole, rule_.top);
    zero[r] -= move[r];
    any = any || move[r] != 0;
  }
  if (!any) return;
  float* const steps = tile_.at(tile_.steps, begin_);
  for (std::size_t i = 0, k = 0; k < width; ++k)
    for (std::size_t r = 0; r < rows_; ++r, ++i) {
      steps[i] += move[r];
      y_[i] -= move[r] * scale[r] * row_sum[k];
    }
  take_differences();
}

// difference = weight - value, afresh: what is added up drifts.
void GroupDescent::take_differences() {
  host_tile_subtract(tile_.at(tile_.difference, begin_), tile_.at(tile_.weight, begin_),
                     tile_.scale_of(group_), tile_.at(tile_.steps, begin_), width_);
}

TileColumns GroupDescent::columns_of(const ColumnBlock& block) {
  TileColumns columns = tile_.columns_of(problem_.square, block, *problem_.order);
  columns.carried = tile_.at(y_, block.begin - begin_);
  columns.inverse = problem_.inverse.data() + block.begin;
  columns.top = rule_.top;
  return columns;
}

}  // namespace llmq
