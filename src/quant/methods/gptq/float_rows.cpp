#include "quant/methods/gptq/float_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "quant/methods/float_value.h"
#include "tensor/block_scales.h"

namespace llmq {

FloatRows::FloatRows(const GptqLinear& linear, const RoundingProblem& problem, const FloatScales& scales,
                     std::int64_t first_row)
    : linear_(linear),
      problem_(problem),
      scales_(scales),
      first_row_(first_row),
      rows_(std::min(host_tile_rows(), problem.out_features - first_row)),
      size_(problem.in_features),
      group_(linear.scheme.group_of(size_)),
      groups_(size_ / group_),
      tile_(size_, groups_) {}

void FloatRows::run() {
  read_weight();
  if (!has_runs()) choose_scales();
  for (const ColumnBlock& block : linear_.input.unit_upper.blocks()) {
    carry(block);
    if (scales_.type() == WeightType::kFloat4)
      round_block<WeightType::kFloat4>(block);
    else
      round_block<WeightType::kFloat8>(block);
  }
}

// Columns that no input uses stay 0, and so do rows beyond the last.
void FloatRows::read_weight() {
  const GptqInput& input = linear_.input;
  for (std::int64_t r = 0; r < rows_; ++r) {
    const float* const from = problem_.weight.data() + (first_row_ + r) * size_;
    for (std::int64_t place = 0; place < size_; ++place) {
      const auto column = static_cast<std::size_t>(input.order.columns[static_cast<std::size_t>(place)]);
      if (input.dead[column] == 0)
        tile_.weight[static_cast<std::size_t>(place * tile_.rows + r)] = from[column];
    }
  }
}

void FloatRows::choose_scales() {
  const std::vector<float> importance = linear_.input.importance_by_column();
  const auto width = static_cast<std::size_t>(group_);
  for (std::int64_t g = 0; g < groups_; ++g) {
    std::fill_n(tile_.scale_of(g), tile_.rows, 1.0f);
    for (std::int64_t r = 0; r < rows_; ++r) {
      const auto first = static_cast<std::size_t>((first_row_ + r) * size_ + g * group_);
      tile_.scale_of(g)[r] = search_float_scale(
          problem_.weight.subspan(first, width),
          std::span(importance).subspan(static_cast<std::size_t>(g) * width, width), scales_);
    }
  }
}

void FloatRows::carry(const ColumnBlock& block) {
  carried_.resize(static_cast<std::size_t>(block.width * tile_.rows));
  host_tile_product(carried_.data(), linear_.input.unit_upper.at(0, block), block.width, block.width,
                    tile_.difference.data(), block.begin, false);
  const float* const weight = tile_.at(tile_.weight, block.begin);
  for (std::size_t i = 0; i < carried_.size(); ++i) carried_[i] += weight[i];
}

std::vector<float> FloatRows::largest_in(const ColumnBlock& block) const {
  std::vector<float> largest(static_cast<std::size_t>(tile_.rows));
  for (std::int64_t c = 0; c < block.width; ++c)
    for (std::size_t r = 0; r < largest.size(); ++r)
      largest[r] =
          std::max(largest[r], std::fabs(carried_[static_cast<std::size_t>(c) * largest.size() + r]));
  return largest;
}

template <WeightType kType>
void FloatRows::round_block(const ColumnBlock& block) {
  const auto rows = static_cast<std::size_t>(tile_.rows);
  scaled_.resize(carried_.size());
  difference_.resize(carried_.size());
  scale_.resize(carried_.size());
  loss_.resize(rows);
  least_.assign(rows, std::numeric_limits<float>::infinity());
  const std::vector<float> largest = has_runs() ? largest_in(block) : std::vector<float>();
  const int candidates = has_runs() ? scales_.count() : 1;
  for (int i = 0; i < candidates; ++i) {
    take_candidate(block, largest, i);
    try_block<kType>(block);
    keep_better(block);
  }
}

// The scale of each place and row; a block has places of one group where groups are runs.
void FloatRows::take_candidate(const ColumnBlock& block, std::span<const float> largest, int candidate) {
  const std::int64_t rows = tile_.rows;
  for (std::int64_t c = 0; c < block.width; ++c) {
    float* const into = scale_.data() + c * rows;
    const std::int32_t group = linear_.input.order.group[static_cast<std::size_t>(block.begin + c)];
    if (!has_runs())
      std::copy_n(tile_.scale_of(group), rows, into);
    else if (c > 0)
      std::copy_n(scale_.data(), rows, into);
    else
      for (std::int64_t r = 0; r < rows; ++r)
        into[r] = scales_.at(largest[static_cast<std::size_t>(r)], candidate);
  }
}

template <WeightType kType>
void FloatRows::try_block(const ColumnBlock& block) {
  const std::int64_t rows = tile_.rows;
  std::fill(loss_.begin(), loss_.end(), 0.0f);
  float* const loss = loss_.data();
  std::vector<float> current(static_cast<std::size_t>(rows));
  float* const v = current.data();
  for (std::int64_t c = 0; c < block.width; ++c) {
    std::copy_n(carried_.data() + c * rows, rows, v);
    for (std::int64_t j = 0; j < c; ++j) {
      const float factor = linear_.input.unit_upper.at(block.begin + j, block)[c];
      const float* const d = difference_.data() + j * rows;
      for (std::int64_t r = 0; r < rows; ++r) v[r] += factor * d[r];
    }
    const float cost = linear_.input.cost[static_cast<std::size_t>(block.begin + c)];
    const float* const weight = tile_.at(tile_.weight, block.begin + c);
    const float* const scale = scale_.data() + c * rows;
    float *const scaled = scaled_.data() + c * rows, *const difference = difference_.data() + c * rows;
    for (std::int64_t r = 0; r < rows; ++r) {
      scaled[r] = v[r] / scale[r];
      const float size = rounded_magnitude<kType>(std::fabs(scaled[r])) * scale[r];
      const float value = v[r] < 0 ? -size : size, off = v[r] - value;
      difference[r] = weight[r] - value;
      loss[r] += cost * off * off;
    }
  }
}

void FloatRows::keep_better(const ColumnBlock& block) {
  const auto rows = static_cast<std::size_t>(tile_.rows);
  const std::int32_t group = linear_.input.order.group[static_cast<std::size_t>(block.begin)];
  float *const steps = tile_.at(tile_.steps, block.begin), *const kept =
                                                               tile_.at(tile_.difference, block.begin);
  for (std::size_t r = 0; r < rows; ++r) {
    if (!(loss_[r] < least_[r])) continue;
    least_[r] = loss_[r];
    if (has_runs()) tile_.scale_of(group)[r] = scale_[r];
    for (std::size_t i = r; i < scaled_.size(); i += rows) steps[i] = scaled_[i], kept[i] = difference_[i];
  }
}

void FloatRows::write(QuantizedMatrix& matrix) {
  const ColumnOrder& order = linear_.input.order;
  for (std::int64_t r = 0; r < rows_; ++r) {
    const std::int64_t row = first_row_ + r;
    for (std::int64_t g = 0; g < groups_; ++g)
      matrix.scales[static_cast<std::size_t>(row * groups_ + g)] = tile_.scale_of(g)[r];
    for (std::int64_t place = 0; place < size_; ++place)
      matrix.codes[static_cast<std::size_t>(row * size_ + order.columns[static_cast<std::size_t>(place)])] =
          float_code(tile_.steps[static_cast<std::size_t>(place * tile_.rows + r)], scales_.type());
  }
}

}  // namespace llmq
