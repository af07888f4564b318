#include "quant/methods/rtn.h"

#include <algorithm>

#include "quant/methods/gram_loss.h"

namespace llmq {
namespace {

std::size_t group_count(std::int64_t columns, const QuantScheme& scheme) {
  const std::int64_t group = scheme.group_of(columns);
  return static_cast<std::size_t>((columns + group - 1) / group);
}

// Each group's range over `together` rows at a time, given to each of them.
void share_ranges(std::vector<GroupRange>& ranges, std::size_t groups, std::size_t together) {
  const std::size_t rows = ranges.size() / groups;
  for (std::size_t first = 0; first < rows; first += together)
    for (std::size_t g = 0; g < groups; ++g) {
      const std::size_t end = std::min(rows, first + together);
      GroupRange all;
      for (std::size_t row = first; row < end; ++row) {
        const GroupRange& one = ranges[row * groups + g];
        all = {std::min(all.low, one.low), std::max(all.high, one.high)};
      }
      for (std::size_t row = first; row < end; ++row) ranges[row * groups + g] = all;
    }
}

// Codes against the zeros as they are stored, rounded.
void round_to_addends(std::span<const float> weight, QuantizedMatrix& matrix, ThreadPool& pool) {
  store_addends(matrix);
  const auto group = static_cast<std::size_t>(matrix.group());
  const auto top = static_cast<float>(matrix.scheme.code_count() - 1);
  pool.parallel_for(matrix.scales.size(), [&](std::size_t g, int) {
    for (std::size_t k = g * group; k < (g + 1) * group; ++k) {
      const float steps = (weight[k] + matrix.minima[g]) / matrix.scales[g];
      matrix.codes[k] = static_cast<std::uint8_t>(clamp_code(nearest<OneRow>(steps), top));
    }
  });
}

class Rtn final : public Method {
 public:
  Rtn(const FloatGroupOptions& floats, Compute compute) : floats_(floats), compute_(compute) {}
  QuantizedMatrix quantize(const RoundingProblem& problem, Backend& backend) const override {
    ThreadPool& pool = backend.workers();
    QuantizedMatrix matrix =
        round_to_nearest(problem.weight, problem.out_features, problem.in_features, problem.scheme, pool,
                         {floats_.search, problem.global_scale, {}});
    if (problem.stats != nullptr) matrix.loss = rounding_loss(problem, matrix, backend, compute_);
    return matrix;
  }

 private:
  FloatGroupOptions floats_;
  Compute compute_;
};

}  // namespace

std::vector<GroupRange> find_ranges(std::span<const float> weight, std::int64_t rows, std::int64_t columns,
                                    const QuantScheme& scheme, ThreadPool& pool) {
  const std::int64_t group = scheme.group_of(columns);
  const std::size_t groups = group_count(columns, scheme);
  std::vector<GroupRange> ranges(static_cast<std::size_t>(rows) * groups);
  pool.parallel_for(static_cast<std::size_t>(rows), [&](std::size_t row, int) {
    for (std::size_t g = 0; g < groups; ++g) {
      const std::int64_t first = static_cast<std::int64_t>(g) * group;
      ranges[row * groups + g] = find_range(weight.data() + static_cast<std::int64_t>(row) * columns + first,
                                            std::min(group, columns - first));
    }
  });
  // The rows that share a scale share a range.
  if (scheme.granularity == Granularity::kTensor)
    share_ranges(ranges, groups, static_cast<std::size_t>(rows));
  if (scheme.granularity == Granularity::kBlock) share_ranges(ranges, groups, kFloat8Block);
  return ranges;
}

QuantizedMatrix round_in_ranges(std::span<const float> weight, std::int64_t rows, std::int64_t columns,
                                const QuantScheme& scheme, std::span<const GroupRange> ranges,
                                ThreadPool& pool) {
  const std::int64_t group = scheme.group_of(columns);
  const std::size_t groups = group_count(columns, scheme);
  QuantizedMatrix matrix;
  matrix.scheme = scheme;
  matrix.out_features = rows;
  matrix.in_features = columns;
  matrix.codes.resize(weight.size());
  matrix.scales.resize(ranges.size());
  matrix.zeros.resize(ranges.size());
  pool.parallel_for(static_cast<std::size_t>(rows), [&](std::size_t row, int) {
    for (std::size_t g = 0; g < groups; ++g) {
      const std::int64_t first = static_cast<std::int64_t>(g) * group;
      const auto start = static_cast<std::size_t>(static_cast<std::int64_t>(row) * columns + first);
      const GroupGrid grid = grid_for(ranges[row * groups + g], scheme);
      matrix.scales[row * groups + g] = grid.scale;
      matrix.zeros[row * groups + g] = static_cast<std::uint8_t>(grid.zero);
      if (scheme.zero_form == ZeroForm::kInteger)
        round_codes(weight.data() + start, std::min(group, columns - first), grid,
                    matrix.codes.data() + start);
    }
  });
  if (scheme.zero_form == ZeroForm::kAddend) round_to_addends(weight, matrix, pool);
  return matrix;
}

QuantizedMatrix round_to_nearest(std::span<const float> weight, std::int64_t rows, std::int64_t columns,
                                 const QuantScheme& scheme, ThreadPool& pool, const FloatGroupRounding& how) {
  if (scheme.scale_form() != ScaleForm::kNumber)
    return round_float_groups(weight, rows, columns, scheme, how, pool);
  return round_in_ranges(weight, rows, columns, scheme, find_ranges(weight, rows, columns, scheme, pool),
                         pool);
}

std::unique_ptr<Method> make_rtn(Compute compute, const FloatGroupOptions& floats) {
  return std::make_unique<Rtn>(floats, compute);
}

}  // namespace llmq
