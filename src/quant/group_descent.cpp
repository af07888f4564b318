#include "quant/group_descent.h"

#include <algorithm>
#include <array>

#include "tensor/quantized_matrix.h"

namespace llmq {
namespace {

using Lanes = std::array<float, kTileRows>;
constexpr auto kRows = static_cast<std::size_t>(kTileRows);
constexpr std::int64_t kBlock = 64;

class Descent {
 public:
  Descent(const DescentProblem& problem, RowTile& tile)
      : problem_(problem),
        tile_(tile),
        size_(problem.order->size()),
        top_(static_cast<float>(problem.scheme.code_count() - 1)) {}

  void run() {
    const std::vector<std::int32_t>& run = problem_.order->run_begin;
    for (int sweep = 0; sweep < std::max(problem_.sweeps, 1); ++sweep)
      for (std::size_t g = 0; g + 1 < run.size(); ++g) visit(run[g], run[g + 1]);
  }

 private:
  const float* square(std::int64_t row, std::int64_t column) const {
    return problem_.square.data() + row * size_ + column;
  }

  void visit(std::int64_t begin, std::int64_t end) {
    const std::int64_t width = end - begin;
    const std::int64_t group = problem_.order->group[static_cast<std::size_t>(begin)];
    y_.assign(static_cast<std::size_t>(width) * kRows, 0);
    add_products(y_.data(), square(0, begin), size_, width, tile_.difference.data(), size_, 1);
    if (problem_.scales) {
      refit_scale(begin, width, group);
      if (!problem_.scheme.symmetric) shift_zero(begin, width, group);
    }
    if (problem_.sweeps == 0) return;
    for (std::int64_t first = begin; first < end; first += kBlock) {
      const std::int64_t count = std::min(kBlock, end - first);
      if (first > begin) {  // what the group's columns before these changed
        y_.assign(static_cast<std::size_t>(count) * kRows, 0);
        add_products(y_.data(), square(0, first), size_, count, tile_.difference.data(), size_, 1);
      }
      round_again(first, count, group);
    }
  }

  void refit_scale(std::int64_t begin, std::int64_t width, std::int64_t group) {
    float* const steps = tile_.steps.data() + begin * kTileRows;
    u_.assign(static_cast<std::size_t>(width) * kRows, 0);
    add_products(u_.data(), square(begin, begin), size_, width, steps, width, 1);
    Lanes slope{}, curve{};
    for (std::size_t i = 0, k = 0; k < static_cast<std::size_t>(width); ++k)
      for (std::size_t r = 0; r < kRows; ++r, ++i) {
        slope[r] += y_[i] * steps[i];
        curve[r] += u_[i] * steps[i];
      }
    Lanes change{};
    float* const scale = tile_.scale_of(group);
    for (std::size_t r = 0; r < kRows; ++r) {
      if (!(curve[r] > 0)) continue;
      const float fresh = stored_scale(scale[r] + slope[r] / curve[r], problem_.scheme.scale_dtype);
      const float step = fresh - scale[r];
      if (!(step * (2 * slope[r] - step * curve[r]) > 0)) continue;
      change[r] = step;
      scale[r] = fresh;
    }
    subtract_values(begin, width, group);
    for (std::size_t i = 0, k = 0; k < static_cast<std::size_t>(width); ++k)
      for (std::size_t r = 0; r < kRows; ++r, ++i) y_[i] -= change[r] * u_[i];
  }

  // The code stays; steps = code - zero move against the zero.
  void shift_zero(std::int64_t begin, std::int64_t width, std::int64_t group) {
    const auto count = static_cast<std::size_t>(width);
    std::vector<float> ones(count);  // G's row sums over the group
    float whole = 0;
    for (std::size_t k = 0; k < count; ++k) {
      const float* const row = square(begin + static_cast<std::int64_t>(k), begin);
      for (std::size_t j = 0; j < count; ++j) ones[k] += row[j];
      whole += ones[k];
    }
    Lanes slope{}, move{};
    for (std::size_t i = 0, k = 0; k < count; ++k)
      for (std::size_t r = 0; r < kRows; ++r, ++i) slope[r] += y_[i];
    const float* const scale = tile_.scale_of(group);
    float* const zero = tile_.zero_of(group);
    for (std::size_t r = 0; r < kRows; ++r) {
      // Values rise by t, D falls by it: the loss changes by -2 t slope + t^2 whole.
      const float rise = scale[r] * slope[r] > 0 ? 1.0f : -1.0f, t = rise * scale[r];
      const bool fits = rise > 0 ? zero[r] > 0 : zero[r] < top_;
      if (!fits || !(2 * t * slope[r] - t * t * whole > 0)) continue;
      zero[r] -= rise;
      move[r] = rise;
    }
    float* const steps = tile_.steps.data() + begin * kTileRows;
    for (std::size_t i = 0, k = 0; k < count; ++k)
      for (std::size_t r = 0; r < kRows; ++r, ++i) {
        steps[i] += move[r];
        y_[i] -= move[r] * scale[r] * ones[k];
      }
    subtract_values(begin, width, group);
  }

  // difference = weight - value, afresh: what is added up drifts.
  void subtract_values(std::int64_t begin, std::int64_t width, std::int64_t group) {
    const float* const scale = tile_.scale_of(group);
    for (std::size_t i = static_cast<std::size_t>(begin) * kRows, k = 0; k < static_cast<std::size_t>(width);
         ++k)
      for (std::size_t r = 0; r < kRows; ++r, ++i)
        tile_.difference[i] = tile_.weight[i] - tile_.steps[i] * scale[r];
  }

  // y_ holds D G on these columns.
  void round_again(std::int64_t first, std::int64_t count, std::int64_t group) {
    const float* const scale = tile_.scale_of(group);
    const float* const zero = tile_.zero_of(group);
    for (std::int64_t k = 0; k < count; ++k) {
      float* const steps = tile_.steps.data() + (first + k) * kTileRows;
      float* const difference = tile_.difference.data() + (first + k) * kTileRows;
      const float* const weight = tile_.weight.data() + (first + k) * kTileRows;
      const float* const row = square(first + k, first);
      const float inverse = 1.0f / row[k];
      Lanes change;
      bool any = false;
      for (std::size_t r = 0; r < kRows; ++r) {
        const float y = y_[static_cast<std::size_t>(k) * kRows + r];
        const float best = steps_of(steps[r] * scale[r] + y * inverse, scale[r], zero[r], top_);
        change[r] = (best - steps[r]) * scale[r];
        any = any || change[r] != 0;
        steps[r] = best;
        difference[r] = weight[r] - best * scale[r];
      }
      if (!any) continue;
      for (std::int64_t j = 0; j < count; ++j)
        for (std::size_t r = 0; r < kRows; ++r)
          y_[static_cast<std::size_t>(j) * kRows + r] -= change[r] * row[j];
    }
  }

  const DescentProblem& problem_;
  RowTile& tile_;
  std::int64_t size_;
  float top_;
  std::vector<float> y_, u_;
};

}  // namespace

void descend(const DescentProblem& problem, RowTile& tile) { Descent(problem, tile).run(); }

}  // namespace llmq
