// Work items are blocks of rows whose sums are added in order: no result depends on the threads.
#include "quant/methods/smoothquant/sampled_rows.h"

#include "device/low_precision.h"
#include "quant/methods/rounding.h"
#include "quant/methods/smoothquant/device_rows.h"
#include "quant/methods/smoothquant/lane_sums.h"
#include "tensor/block_scales.h"

namespace llmq {
namespace {

constexpr std::size_t kWeightRows = 256;  // judged per candidate, of all readers
constexpr std::size_t kBlock = kRowsTogether;

// Of weight.size() values with one step.
template <bool kFloat8>
double error_of(const float* x, const float* s, const float* inverse, float scale,
                std::span<const double> weight) {
  const InputStep step = InputStep::of(scale, kLeastInputScale);
  double sums[kSumLanes] = {};
  by_lanes(weight.size(), [&](std::size_t k, std::size_t lane) {
    sums[lane] += weighted_square(input_error<kFloat8>(x[k], s[k], inverse[k], step), weight[k]);
  });
  return sum_of_lanes(sums);
}

// The same of floats in groups; at most as many as a group has.
double float_group_error(const InputGroups& groups, const float* x, const float* s, const float* inverse,
                         std::span<const double> weight) {
  const int count = static_cast<int>(weight.size());
  float rounded[InputGroups::kMostInGroup];
  for (int k = 0; k < count; ++k) rounded[k] = x[k] * inverse[k];
  round_input_group(groups, rounded, count);
  double sum = 0;
  for (int k = 0; k < count; ++k)
    sum += weighted_square(static_cast<double>(rounded[k]) * global_factor(groups) * s[k] - x[k],
                           weight[static_cast<std::size_t>(k)]);
  return sum;
}

// v becomes powers, to be multiplied by the row's part. A function of its own: inlined, its loops were
// slower.
__attribute__((noinline)) SoftRow soften_row(std::span<double> v, double weight) {
  double mosts[kSumLanes] = {}, sums[kSumLanes] = {};
  by_lanes(v.size(), [&](std::size_t k, std::size_t lane) { mosts[lane] = greater_of(mosts[lane], v[k]); });
  const double most = *std::max_element(mosts, mosts + kSumLanes), inverse = inverse_of_most(most);
  by_lanes(v.size(),
           [&](std::size_t k, std::size_t lane) { sums[lane] += v[k] = soft_power(v[k], inverse); });
  return soft_row(most, sum_of_lanes(sums), weight);
}

class HostSmoothRows final : public SmoothRows {
 public:
  HostSmoothRows(const SmoothProblem& problem, ThreadPool& pool) : problem_(problem), pool_(pool) {}

  void input_errors(std::span<const float> s, std::span<const float> inverse, std::optional<float> scale,
                    std::span<double> sums) override {
    const bool float8 = problem_.activations->weight_type == WeightType::kFloat8;
    const float top = input_top(problem_.activations->weight_type);
    const auto error = float8 ? error_of<true> : error_of<false>;
    const std::span<const double> weight = problem_.weight_energy;
    const std::size_t groups = problem_.groups();
    const InputGroups in_groups =
        input_groups(*problem_.activations, scale.value_or(1.0f), GlobalForm::kDivisor);
    each_row(problem_.inputs.values.size(), [&](std::size_t t) {
      for (std::size_t g = 0; g < groups; ++g) {
        const std::size_t first = g * problem_.group,
                          count = std::min(problem_.group, problem_.channels - first);
        const float* const x = problem_.inputs.values[t] + first;
        if (in_groups.size != 0) {
          sums[t * groups + g] = float_group_error(in_groups, x, s.data() + first, inverse.data() + first,
                                                   weight.subspan(first, count));
          continue;
        }
        sums[t * groups + g] = error(x, s.data() + first, inverse.data() + first,
                                     scale ? *scale : largest(x, inverse.data() + first, count) / top,
                                     weight.subspan(first, count));
      }
    });
  }

  void weight_errors(std::span<const float> s, std::span<const float> inverse,
                     std::span<double> sums) override {
    const auto columns = static_cast<std::int64_t>(problem_.channels);
    each_row(problem_.weights.values.size(), [&](std::size_t n) {
      thread_local std::vector<float> scratch;
      scratch.resize(2 * problem_.channels);
      float* const difference = scratch.data() + problem_.channels;
      const QuantScheme& scheme = *problem_.weight_scheme[n];
      scaled_difference(problem_.weights.values[n], columns, scheme.group_of(columns), s.data(),
                        inverse.data(), scheme, scratch.data(), difference);
      sums[n] = sum_of_squares(difference, problem_.input_energy);
    });
  }

  void soften(Side side, std::span<const double> factor, std::span<double> energy,
              std::span<double> share) override {
    const SampledRows& rows = side == Side::kInputs ? problem_.inputs : problem_.weights;
    std::vector<std::vector<double>> shares((rows.values.size() + kBlock - 1) / kBlock);
    pool_.parallel_for(shares.size(), [&](std::size_t block, int) {
      shares[block].assign(problem_.channels, 0);
      std::vector<double> v(problem_.channels);
      for (std::size_t row = block * kBlock; row < std::min(rows.values.size(), (block + 1) * kBlock);
           ++row) {
        const float* const x = rows.values[row];
        by_lanes(v.size(), [&](std::size_t k, std::size_t) { v[k] = soft_value(x[k], factor[k]); });
        const SoftRow soft = soften_row(v, rows.step_weight[row]);
        energy[row] = soft.energy;
        const double part = soft.part;
        double* const sum = shares[block].data();
        by_lanes(v.size(), [&](std::size_t k, std::size_t) { sum[k] += part * v[k]; });
      }
    });
    std::fill(share.begin(), share.end(), 0.0);
    for (const std::vector<double>& block : shares)
      for (std::size_t k = 0; k < share.size(); ++k) share[k] += block[k];
  }

 private:
  template <typename Work>
  void each_row(std::size_t rows, const Work& work) const {
    pool_.parallel_for((rows + kBlock - 1) / kBlock, [&](std::size_t block, int) {
      for (std::size_t row = block * kBlock; row < std::min(rows, (block + 1) * kBlock); ++row) work(row);
    });
  }

  const SmoothProblem& problem_;
  ThreadPool& pool_;
};

}  // namespace

double sum_of_rows(std::span<const double> rows) {
  double whole = 0;
  for (std::size_t first = 0; first < rows.size(); first += kBlock) {
    double sum = 0;
    for (const double value : rows.subspan(first, std::min(kBlock, rows.size() - first))) sum += value;
    whole += sum;
  }
  return whole;
}

std::size_t sampled_stride(std::size_t all) { return std::max<std::size_t>(1, all / kWeightRows); }

std::unique_ptr<SmoothRows> make_smooth_rows(const SmoothProblem& problem, ThreadPool& pool,
                                             Backend* backend) {
  if (backend != nullptr && !problem.activations->rounds_inputs_in_float_groups())
    if (std::unique_ptr<SmoothRows> there = make_device_smooth_rows(problem, *backend)) return there;
  return std::make_unique<HostSmoothRows>(problem, pool);
}

}  // namespace llmq
