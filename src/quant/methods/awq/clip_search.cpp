// Both ends of a range shrink together or one alone, in steps of 1/20 down to one half. Cost: candidates x 2
// x group products per weight.
#include "quant/methods/awq/clip_search.h"

#include <algorithm>
#include <optional>

#include "quant/methods/gram_loss.h"
#include "quant/methods/rtn.h"

namespace llmq {
namespace {

using Shrink = GramLoss::Shrink;

std::vector<Shrink> make_shrinks(bool symmetric) {
  constexpr int kSteps = 10;
  constexpr float kStep = 0.05f;
  std::vector<Shrink> shrinks = {{1, 1}};
  for (int i = 1; i <= kSteps; ++i) {
    const float f = 1.0f - kStep * static_cast<float>(i);
    shrinks.push_back({f, f});
    if (symmetric) continue;
    shrinks.push_back({f, 1});
    shrinks.push_back({1, f});
  }
  return shrinks;
}

// The square of columns [first, first + count) of G.
std::vector<float> diagonal_block(const InputStats& stats, std::int64_t first, std::int64_t count) {
  std::vector<float> block(static_cast<std::size_t>(count * count));
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t j = 0; j < count; ++j)
      block[static_cast<std::size_t>(i * count + j)] =
          static_cast<float>(stats.gram_at(first + i, first + j));
  return block;
}

class ClipSearch {
 public:
  ClipSearch(const RoundingProblem& problem, std::vector<GroupRange>& ranges, Backend& backend,
             Compute compute, ThreadPool& pool)
      : problem_(problem),
        ranges_(ranges),
        backend_(backend),
        compute_(compute),
        pool_(pool),
        shrinks_(make_shrinks(problem.scheme.symmetric)) {}

  void run() {
    const std::int64_t columns = problem_.in_features, group = problem_.scheme.group_of(columns);
    for (std::int64_t g = 0; g * group < columns; ++g)
      search_group(g, g * group, std::min(group, columns - g * group));
  }

 private:
  void search_group(std::int64_t g, std::int64_t first, std::int64_t count) {
    const std::int64_t rows = problem_.out_features, columns = problem_.in_features;
    const std::int64_t groups = static_cast<std::int64_t>(ranges_.size()) / rows;
    const auto options = static_cast<std::int64_t>(shrinks_.size());
    GramLoss gram(diagonal_block(*problem_.stats, first, count), count, backend_, compute_,
                  problem_.further_devices, or_alone(problem_.ranks));
    const auto row_of = [&](std::int64_t row) {
      return GramLoss::RangedRow{problem_.weight.data() + row * columns + first,
                                 ranges_[static_cast<std::size_t>(row * groups + g)]};
    };
    const std::vector<double> loss = gram.shrunk_losses(rows, row_of, shrinks_, problem_.scheme, pool_);
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto begin = loss.begin() + row * options;
      GroupRange& range = ranges_[static_cast<std::size_t>(row * groups + g)];
      range = shrunk(range,
                     std::min_element(begin, begin + options) - begin);  // the first of equals: least clipped
    }
  }

  GroupRange shrunk(GroupRange range, std::int64_t option) const {
    const Shrink shrink = shrinks_[static_cast<std::size_t>(option)];
    return {range.low * shrink.low, range.high * shrink.high};
  }

  const RoundingProblem& problem_;
  std::vector<GroupRange>& ranges_;
  Backend& backend_;
  Compute compute_;
  ThreadPool& pool_;
  std::vector<Shrink> shrinks_;
};

// Row n of `into` becomes row n of `from`.
void take_row(QuantizedMatrix& into, const QuantizedMatrix& from, std::int64_t row) {
  const std::int64_t columns = into.in_features, groups = into.groups();
  std::copy_n(from.codes.begin() + row * columns, columns, into.codes.begin() + row * columns);
  std::copy_n(from.scales.begin() + row * groups, groups, into.scales.begin() + row * groups);
  std::copy_n(from.zeros.begin() + row * groups, groups, into.zeros.begin() + row * groups);
  if (!from.minima.empty())
    std::copy_n(from.minima.begin() + row * groups, groups, into.minima.begin() + row * groups);
}

class AwqRounding final : public Method {
 public:
  AwqRounding(const AwqOptions& options, const FloatGroupOptions& floats, Compute compute)
      : options_(options), floats_(floats), compute_(compute) {}

  QuantizedMatrix quantize(const RoundingProblem& problem, Backend& backend) const override {
    ThreadPool& pool = backend.workers();
    const std::int64_t rows = problem.out_features, columns = problem.in_features;
    if (problem.scheme.scale_form() != ScaleForm::kNumber) return to_floats(problem, backend);
    std::vector<GroupRange> ranges = find_ranges(problem.weight, rows, columns, problem.scheme, pool);
    QuantizedMatrix plain = round_in_ranges(problem.weight, rows, columns, problem.scheme, ranges, pool);
    std::optional<GramLoss> made;
    GramLoss& gram = gram_of(problem, made, backend, compute_);
    std::vector<double> loss = row_losses(plain, problem.weight, gram, pool);
    if (options_.clip && problem.scheme.granularity != Granularity::kTensor) {
      ClipSearch(problem, ranges, backend, compute_, pool).run();
      const QuantizedMatrix clipped =
          round_in_ranges(problem.weight, rows, columns, problem.scheme, ranges, pool);
      const std::vector<double> clipped_loss = row_losses(clipped, problem.weight, gram, pool);
      for (std::int64_t row = 0; row < rows; ++row) {
        const auto r = static_cast<std::size_t>(row);
        if (!(clipped_loss[r] < loss[r])) continue;
        take_row(plain, clipped, row);
        loss[r] = clipped_loss[r];
      }
    }
    plain.loss = sum_in_order(loss);
    return plain;
  }

 private:
  // Scales of floats in groups are searched for by the importance of columns in place of the clipping; each
  // row has what loses less.
  QuantizedMatrix to_floats(const RoundingProblem& problem, Backend& backend) const {
    ThreadPool& pool = backend.workers();
    const std::int64_t rows = problem.out_features, columns = problem.in_features;
    FloatGroupRounding how{floats_.search, problem.global_scale, {}};
    QuantizedMatrix plain = round_to_nearest(problem.weight, rows, columns, problem.scheme, pool, how);
    std::optional<GramLoss> made;
    GramLoss& gram = gram_of(problem, made, backend, compute_);
    std::vector<double> loss = row_losses(plain, problem.weight, gram, pool);
    if (options_.clip && floats_.search) {
      const std::vector<double> diagonal = problem.stats->gram_diagonal();
      const std::vector<float> importance(diagonal.begin(), diagonal.end());
      how.importance = importance;
      how.global_scale = plain.global_scale;
      const QuantizedMatrix searched =
          round_to_nearest(problem.weight, rows, columns, problem.scheme, pool, how);
      const std::vector<double> searched_loss = row_losses(searched, problem.weight, gram, pool);
      for (std::int64_t row = 0; row < rows; ++row) {
        const auto r = static_cast<std::size_t>(row);
        if (!(searched_loss[r] < loss[r])) continue;
        take_row(plain, searched, row);
        loss[r] = searched_loss[r];
      }
    }
    plain.loss = sum_in_order(loss);
    return plain;
  }

  AwqOptions options_;
  FloatGroupOptions floats_;
  Compute compute_;
};

}  // namespace

std::size_t clip_options(bool symmetric) { return make_shrinks(symmetric).size(); }

std::uint64_t clip_search_device_bytes(std::int64_t out_features, std::int64_t group, bool symmetric,
                                       std::uint64_t element, std::uint64_t device_scratch) {
  const std::uint64_t shrinks = make_shrinks(symmetric).size(), columns = static_cast<std::uint64_t>(group),
                      out = static_cast<std::uint64_t>(out_features),
                      items =
                          std::min(static_cast<std::uint64_t>(GramLoss::rows_at_once(group, device_scratch)),
                                   out * shrinks);
  return columns * (element * columns + items * (4 + 4 + 2) + std::min(items / shrinks + 2, out) * 4);
}

std::unique_ptr<Method> make_awq_rounding(const AwqOptions& options, Compute compute,
                                          const FloatGroupOptions& floats) {
  return std::make_unique<AwqRounding>(options, floats, compute);
}

}  // namespace llmq
