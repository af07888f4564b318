// Work items are blocks of rows whose sums are added in order: no result depends on the threads. Within a row sums are
// kLanes apart, in the compiler's vectors, whatever these are: nor does a result depend on the processor.
#include "quant/smooth_loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/half.h"
#include "device/low_precision.h"
#include "quant/rounding.h"

namespace llmq {
namespace {

constexpr std::size_t kWeightRows = 256;  // judged per candidate, of all readers
constexpr std::size_t kBlock = 32;        // rows summed in one item
constexpr std::size_t kLanes = 8;         // sums of one row side by side

// body(k, lane) for every k below `count`: the eight lanes of a step need nothing of each other.
template <typename Body>
inline __attribute__((always_inline)) void by_lanes(std::size_t count, const Body& body) {
  std::size_t k = 0;
  for (; k + kLanes <= count; k += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) body(k + lane, lane);
  for (std::size_t lane = 0; k < count; ++k, ++lane) body(k, lane);
}

double sum_of_lanes(const double (&sums)[kLanes]) {
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// sum_k weight_k e_k^2 of the errors e = s Q(x / s) - x of 8-bit codes over weight.size() values, one step for all.
template <bool Float8>
double input_error(const float* x, const float* s, const float* inverse, float scale, std::span<const double> weight) {
  if (scale == 0) scale = kLeastInputScale;
  const float per = 1.0f / scale;
  double sums[kLanes] = {};
  by_lanes(weight.size(), [&](std::size_t k, std::size_t lane) {
    const float steps = x[k] * inverse[k] * per;
    constexpr float kMagic = 12582912.0f;  // nearest integer, ties to even, below 2^22
    const float code = Float8 ? to_float(to_float8(steps)) : (std::min(std::max(steps, -128.0f), 127.0f) + kMagic) - kMagic;
    const auto error = static_cast<double>(code * scale * s[k] - x[k]);
    sums[lane] += error * error * weight[k];
  });
  return sum_of_lanes(sums);
}

float largest(const float* x, const float* inverse, std::size_t count) {
  float most[kLanes] = {};
  by_lanes(count, [&](std::size_t k, std::size_t lane) { most[lane] = std::max(most[lane], std::fabs(x[k] * inverse[k])); });
  return *std::max_element(most, most + kLanes);
}

double weighted_square(const float* difference, std::span<const double> weight) {
  double sums[kLanes] = {};
  by_lanes(weight.size(), [&](std::size_t k, std::size_t lane) {
    const auto value = static_cast<double>(difference[k]);
    sums[lane] += value * value * weight[k];
  });
  return sum_of_lanes(sums);
}

std::vector<float> inverse_of(std::span<const float> s) {
  std::vector<float> inverse(s.size());
  for (std::size_t k = 0; k < s.size(); ++k) inverse[k] = 1.0f / s[k];
  return inverse;
}

// sum[k] += sum_r weight_r x_rk^2 over rows of sum.size() values, in the order of the rows; no weights: 1 each.
void add_squares(std::span<double> sum, const float* x, std::size_t rows, std::span<const double> weight,
                 ThreadPool& pool) {
  constexpr std::size_t kColumns = 64;
  pool.parallel_for((sum.size() + kColumns - 1) / kColumns, [&](std::size_t item, int) {
    const std::size_t first = item * kColumns, end = std::min(sum.size(), first + kColumns);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t k = first; k < end; ++k) {
        const auto value = static_cast<double>(x[r * sum.size() + k]);
        sum[k] += (weight.empty() ? value : weight[r] * value) * value;
      }
  });
}

// sum over rows of row_sum(row), in blocks.
template <typename RowSum>
double sum_of_rows(std::size_t rows, ThreadPool& pool, const RowSum& row_sum) {
  std::vector<double> sums((rows + kBlock - 1) / kBlock);
  pool.parallel_for(sums.size(), [&](std::size_t block, int) {
    for (std::size_t row = block * kBlock; row < std::min(rows, (block + 1) * kBlock); ++row) sums[block] += row_sum(row);
  });
  return sum_in_order(sums);
}

const QuantScheme& scheme_of_activations(const ScaleProblem& problem) {
  for (const ScaleReader& reader : problem.readers)
    if (reader.scheme.activation_scale != ActivationScale::kNone) return reader.scheme;
  return problem.readers.front().scheme;
}

// What the largest of positive numbers v_k is, softened: (sum v^16)^(1/16); v_k becomes its share, times `whole`.
struct SoftMaximum {
  double value, whole;
};
SoftMaximum soft_maximum(std::span<double> v) {
  double mosts[kLanes] = {}, sums[kLanes] = {};
  by_lanes(v.size(), [&](std::size_t k, std::size_t lane) { mosts[lane] = std::max(mosts[lane], v[k]); });
  const double most = *std::max_element(mosts, mosts + kLanes);
  if (!(most > 0)) return {0, 1};
  const double inverse = 1 / most;
  by_lanes(v.size(), [&](std::size_t k, std::size_t lane) {
    const double r = v[k] * inverse, r2 = r * r, r4 = r2 * r2, r8 = r4 * r4;
    sums[lane] += v[k] = r8 * r8;
  });
  const double whole = sum_of_lanes(sums);
  return {most * std::pow(whole, 1.0 / 16), whole};
}

}  // namespace

SmoothJudge::SmoothJudge(const ScaleProblem& problem, ThreadPool& pool)
    : problem_(problem),
      pool_(pool),
      scheme_(scheme_of_activations(problem)),
      channels_(static_cast<std::size_t>(problem.stats->channels())) {
  std::size_t all = 0;
  for (const ScaleReader& reader : problem.readers) all += static_cast<std::size_t>(reader.out_features);
  const std::size_t stride = std::max<std::size_t>(1, all / kWeightRows);
  weight_energy_.assign(channels_, 0);
  std::size_t row = 0;
  for (const ScaleReader& reader : problem.readers) {
    add_squares(weight_energy_, reader.weight.data(), static_cast<std::size_t>(reader.out_features), {},
                pool);
    for (std::int64_t n = 0; n < reader.out_features; ++n, ++row)
      if (row % stride == 0)
        rows_.push_back({reader.weight.data() + static_cast<std::size_t>(n) * channels_, &reader.scheme, 1});
  }
  for (WeightRow& sampled : rows_) sampled.share = static_cast<float>(all) / static_cast<float>(rows_.size());

  const auto tokens = static_cast<std::size_t>(problem.rows->rows());
  token_weight_.resize(tokens);
  pool.parallel_for((tokens + kBlock - 1) / kBlock, [&](std::size_t block, int) {
    for (std::size_t t = block * kBlock; t < std::min(tokens, (block + 1) * kBlock); ++t)
      token_weight_[t] = weighted_square(problem.rows->row(static_cast<std::int64_t>(t)), weight_energy_);
  });
  std::vector<double> sorted = token_weight_;
  std::sort(sorted.begin(), sorted.end());
  const double median =
      std::max(sorted.empty() ? 0.0 : sorted[sorted.size() / 2], std::numeric_limits<double>::min());
  input_energy_.assign(channels_, 0);
  for (std::size_t t = 0; t < tokens; ++t) {
    const double energy = token_weight_[t];
    token_weight_[t] = 1 / (energy + median);
    energy_ += energy * token_weight_[t];
  }
  if (tokens != 0) add_squares(input_energy_, problem.rows->row(0), tokens, token_weight_, pool);
}

std::vector<float> SmoothJudge::typical_inputs() const {
  const double whole = sum_in_order(token_weight_);
  std::vector<float> typical(channels_);
  for (std::size_t k = 0; k < channels_; ++k)
    typical[k] = whole > 0 ? static_cast<float>(std::sqrt(input_energy_[k] / whole)) : 0.0f;
  return typical;
}

double SmoothJudge::activation_loss(std::span<const float> s) const {
  if (scheme_.activation_scale == ActivationScale::kNone) return 0;
  const std::vector<float> inverse = inverse_of(s);
  const float top = input_top(scheme_.weight_type);
  const bool float8 = scheme_.weight_type == WeightType::kFloat8;
  const std::span<const float> seen = problem_.stats->absolute_max();
  const float whole = largest(seen.data(), inverse.data(), channels_) / top;
  const std::size_t group =
      scheme_.activation_scale == ActivationScale::kTokenGroup ? std::size_t{kFloat8Block} : channels_;
  const std::span<const double> weight = weight_energy_;
  return sum_of_rows(token_weight_.size(), pool_, [&](std::size_t t) {
    const float* x = problem_.rows->row(static_cast<std::int64_t>(t));
    double sum = 0;
    for (std::size_t first = 0; first < channels_; first += group) {
      const std::size_t count = std::min(group, channels_ - first);
      const float scale = scheme_.activation_scale == ActivationScale::kTensor
                              ? whole
                              : largest(x + first, inverse.data() + first, count) / top;
      const auto error = float8 ? input_error<true> : input_error<false>;
      sum += error(x + first, s.data() + first, inverse.data() + first, scale, weight.subspan(first, count));
    }
    return token_weight_[t] * sum;
  });
}

double SmoothJudge::weight_loss(std::span<const float> s) const {
  const std::vector<float> inverse = inverse_of(s);
  const auto columns = static_cast<std::int64_t>(channels_);
  return sum_of_rows(rows_.size(), pool_, [&](std::size_t n) {
    thread_local std::vector<float> scratch;
    scratch.resize(2 * channels_);
    const WeightRow& row = rows_[n];
    float* const difference = scratch.data() + channels_;
    scaled_difference(row.values, columns, row.scheme->group_of(columns), s.data(), inverse.data(),
                      *row.scheme, scratch.data(), difference);
    return static_cast<double>(row.share) * weighted_square(difference, input_energy_);
  });
}

SmoothLoss SmoothJudge::loss(std::span<const float> s) const {
  if (!(energy_ > 0)) return {};
  return {activation_loss(s) / energy_, weight_loss(s) / energy_};
}

double SmoothJudge::input_loss(std::span<const float> s) const {
  return energy_ > 0 ? activation_loss(s) / energy_ : 0;
}

// F(s) and, added to `gradient`, dF / d log s, up to the factor 1/12.
double SmoothJudge::add_gradient(std::span<const float> s, std::span<double> gradient) const {
  double input_side = 0, weight_side = 0;  // sum_k s_k^2 m_k, sum_k g_k / s_k^2
  std::vector<double> scale(s.begin(), s.end()), inverse(channels_);
  for (std::size_t k = 0; k < channels_; ++k) inverse[k] = 1 / scale[k];
  for (std::size_t k = 0; k < channels_; ++k) {
    const double square = static_cast<double>(s[k]) * static_cast<double>(s[k]);
    input_side += square * weight_energy_[k];
    weight_side += input_energy_[k] / square;
  }
  // sum over rows of weight * softmax^2, and each channel's share in it.
  struct Steps {
    double sum = 0;
    std::vector<double> share;
  };
  const auto steps_of = [&](std::size_t rows, const auto& fill) {
    std::vector<Steps> blocks((rows + kBlock - 1) / kBlock);
    pool_.parallel_for(blocks.size(), [&](std::size_t block, int) {
      blocks[block].share.assign(channels_, 0);
      std::vector<double> v(channels_);
      for (std::size_t row = block * kBlock; row < std::min(rows, (block + 1) * kBlock); ++row) {
        const double weight = fill(row, v.data());
        const SoftMaximum step = soft_maximum(v);
        const double energy = weight * step.value * step.value, part = energy / step.whole;
        blocks[block].sum += energy;
        double* const share = blocks[block].share.data();
        by_lanes(channels_, [&](std::size_t k, std::size_t) { share[k] += part * v[k]; });
      }
    });
    Steps all{0, std::vector<double>(channels_)};
    for (const Steps& block : blocks) {
      all.sum += block.sum;
      for (std::size_t k = 0; k < channels_; ++k) all.share[k] += block.share[k];
    }
    return all;
  };
  const double input_levels = input_top(scheme_.weight_type);
  const Steps tokens = steps_of(token_weight_.size(), [&](std::size_t t, double* v) {
    const float* x = problem_.rows->row(static_cast<std::int64_t>(t));
    by_lanes(channels_, [&](std::size_t k, std::size_t) { v[k] = std::fabs(static_cast<double>(x[k])) * inverse[k]; });
    return token_weight_[t] / (input_levels * input_levels);
  });
  const Steps weights = steps_of(rows_.size(), [&](std::size_t n, double* v) {
    const WeightRow& row = rows_[n];
    by_lanes(channels_, [&](std::size_t k, std::size_t) { v[k] = std::fabs(static_cast<double>(row.values[k])) * scale[k]; });
    const double levels = (row.scheme->code_count() - 1) / 2.0;
    return static_cast<double>(row.share) / (levels * levels);
  });
  for (std::size_t k = 0; k < channels_; ++k) {
    const double square = static_cast<double>(s[k]) * static_cast<double>(s[k]);
    gradient[k] += 2 * (tokens.sum * square * weight_energy_[k] - tokens.share[k] * input_side +
                        weights.share[k] * weight_side - weights.sum * input_energy_[k] / square);
  }
  return tokens.sum * input_side + weights.sum * weight_side;
}

// Adam on log s with a falling rate: the gradient's size differs by orders of magnitude between channels.
std::vector<float> SmoothJudge::descend(std::vector<float> s) const {
  constexpr int kSteps = 60;
  constexpr double kRate = 0.08, kFirst = 0.9, kSecond = 0.95;
  std::vector<double> gradient(channels_), first(channels_), second(channels_), sum(channels_);
  const std::vector<std::int32_t>& producer = problem_.producer_of;
  for (int step = 1; step <= kSteps; ++step) {
    std::fill(gradient.begin(), gradient.end(), 0.0);
    const double value = add_gradient(s, gradient);
    if (!(value > 0) || !std::isfinite(value)) return s;
    if (!producer.empty()) {  // channels of one producer move together
      std::fill(sum.begin(), sum.end(), 0.0);
      for (std::size_t k = 0; k < channels_; ++k) sum[static_cast<std::size_t>(producer[k])] += gradient[k];
      for (std::size_t k = 0; k < channels_; ++k) gradient[k] = sum[static_cast<std::size_t>(producer[k])];
    }
    const double rate = kRate * (1.0 - static_cast<double>(step - 1) / kSteps);
    for (std::size_t k = 0; k < channels_; ++k) {
      const double g = gradient[k] / value;
      first[k] = kFirst * first[k] + (1 - kFirst) * g;
      second[k] = kSecond * second[k] + (1 - kSecond) * g * g;
      const double mean = first[k] / (1 - std::pow(kFirst, step)),
                   size = std::sqrt(second[k] / (1 - std::pow(kSecond, step)));
      if (size > 0) s[k] *= static_cast<float>(std::exp(-rate * mean / (size + 1e-12)));
    }
  }
  return s;
}

}  // namespace llmq
