// Work items are columns, or rows that are summed in order: no result depends on the threads. Within a row
// sums are in lanes (kernels/common/row_sums.h): nor does a result depend on the processor.
#include "quant/methods/smoothquant/smooth_loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "quant/methods/smoothquant/each_channel.h"
#include "quant/methods/smoothquant/lane_sums.h"
#include "tensor/block_scales.h"

namespace llmq {
namespace {

std::vector<float> inverse_of(std::span<const float> s) {
  std::vector<float> inverse(s.size());
  for (std::size_t k = 0; k < s.size(); ++k) inverse[k] = 1.0f / s[k];
  return inverse;
}

// sum[k] += sum_r weight_r x_rk^2 over rows of sum.size() values, in the order of the rows; no weights: 1
// each.
void add_squares(std::span<double> sum, const float* x, std::size_t rows, std::span<const double> weight,
                 ThreadPool& pool) {
  each_columns(sum.size(), pool, [&](std::size_t first, std::size_t count) {
    double* const into = sum.data() + first;
    for (std::size_t r = 0; r < rows; ++r) {
      const float* const row = x + r * sum.size() + first;
      const double w = weight.empty() ? 1 : weight[r];
      by_lanes(count, [&](std::size_t k, std::size_t) {
        const auto value = static_cast<double>(row[k]);
        into[k] += w * value * value;
      });
    }
  });
}

const QuantScheme& scheme_of_activations(const ScaleProblem& problem) {
  for (const ScaleReader& reader : problem.readers)
    if (reader.scheme.activation_scale != ActivationScale::kNone) return reader.scheme;
  return problem.readers.front().scheme;
}

}  // namespace

SmoothLossFunction::SmoothLossFunction(const ScaleProblem& problem, ThreadPool& pool, Backend* backend)
    : problem_(problem), pool_(pool) {
  const QuantScheme& activations = scheme_of_activations(problem);
  sampled_.activations = &activations;
  sampled_.channels = static_cast<std::size_t>(problem.stats->channels());
  sampled_.group = activations.activation_scale == ActivationScale::kTokenGroup
                       ? static_cast<std::size_t>(activations.group_of(problem.stats->channels()))
                       : sampled_.channels;
  sample_weights();
  weigh_tokens();
  rows_ = make_smooth_rows(sampled_, pool, backend);
}

void SmoothLossFunction::sample_weights() {
  std::size_t all = 0, row = 0;
  for (const ScaleReader& reader : problem_.readers) all += static_cast<std::size_t>(reader.out_features);
  const std::size_t stride = sampled_stride(all);
  sampled_.weight_energy.assign(sampled_.channels, 0);
  for (const ScaleReader& reader : problem_.readers) {
    add_squares(sampled_.weight_energy, reader.weight.data(), static_cast<std::size_t>(reader.out_features),
                {}, pool_);
    for (std::int64_t n = 0; n < reader.out_features; ++n, ++row)
      if (row % stride == 0) {
        sampled_.weights.values.push_back(reader.weight.data() +
                                          static_cast<std::size_t>(n) * sampled_.channels);
        sampled_.weight_scheme.push_back(&reader.scheme);
      }
  }
  share_ = static_cast<double>(static_cast<float>(all) / static_cast<float>(sampled_.weights.values.size()));
  for (const QuantScheme* const scheme : sampled_.weight_scheme) {
    const double levels = (scheme->code_count() - 1) / 2.0;
    sampled_.weights.step_weight.push_back(share_ / (levels * levels));
  }
}

void SmoothLossFunction::weigh_tokens() {
  const auto tokens = static_cast<std::size_t>(problem_.rows->rows());
  for (std::size_t t = 0; t < tokens; ++t)
    sampled_.inputs.values.push_back(problem_.rows->row(static_cast<std::int64_t>(t)));
  token_weight_.resize(tokens);
  pool_.parallel_for((tokens + kRowsTogether - 1) / kRowsTogether, [&](std::size_t block, int) {
    for (std::size_t t = block * kRowsTogether; t < std::min(tokens, (block + 1) * kRowsTogether); ++t)
      token_weight_[t] = sum_of_squares(sampled_.inputs.values[t], sampled_.weight_energy);
  });
  std::vector<double> sorted = token_weight_;
  std::sort(sorted.begin(), sorted.end());
  const double median =
      std::max(sorted.empty() ? 0.0 : sorted[sorted.size() / 2], std::numeric_limits<double>::min());
  const double levels = input_top(sampled_.activations->weight_type);
  for (double& weight : token_weight_) {
    const double energy = weight;
    weight = 1 / (energy + median);
    energy_ += energy * weight;
    sampled_.inputs.step_weight.push_back(weight / (levels * levels));
  }
  sampled_.input_energy.assign(sampled_.channels, 0);
  if (tokens != 0) add_squares(sampled_.input_energy, problem_.rows->row(0), tokens, token_weight_, pool_);
}

std::vector<float> SmoothLossFunction::typical_inputs() const {
  const double whole = sum_in_order(token_weight_);
  std::vector<float> typical(sampled_.channels);
  for (std::size_t k = 0; k < typical.size(); ++k)
    typical[k] = whole > 0 ? static_cast<float>(std::sqrt(sampled_.input_energy[k] / whole)) : 0.0f;
  return typical;
}

double SmoothLossFunction::activation_loss(std::span<const float> s) const {
  if (sampled_.activations->activation_scale == ActivationScale::kNone) return 0;
  const std::vector<float> inverse = inverse_of(s);
  std::optional<float> scale;
  if (sampled_.activations->activation_scale == ActivationScale::kTensor)
    scale = largest(problem_.stats->absolute_max().data(), inverse.data(), inverse.size()) /
            input_top(sampled_.activations->weight_type);
  else if (sampled_.activations->calibrates_inputs())
    scale = nvfp4_global(largest(problem_.stats->absolute_max().data(), inverse.data(), inverse.size()),
                         kWholeRange);
  const std::size_t groups = sampled_.groups();
  std::vector<double> sums(token_weight_.size() * groups), of_token(token_weight_.size());
  rows_->input_errors(s, inverse, scale, sums);
  for (std::size_t t = 0; t < of_token.size(); ++t)
    of_token[t] = token_weight_[t] * sum_in_order(std::span(sums).subspan(t * groups, groups));
  return sum_of_rows(of_token);
}

double SmoothLossFunction::weight_loss(std::span<const float> s) const {
  std::vector<double> sums(sampled_.weights.values.size());
  rows_->weight_errors(s, inverse_of(s), sums);
  for (double& sum : sums) sum *= share_;
  return sum_of_rows(sums);
}

SmoothLoss SmoothLossFunction::loss(std::span<const float> s) const {
  if (!(energy_ > 0)) return {};
  return {activation_loss(s) / energy_, weight_loss(s) / energy_};
}

double SmoothLossFunction::input_loss(std::span<const float> s) const {
  return energy_ > 0 ? activation_loss(s) / energy_ : 0;
}

SmoothLossFunction::Steps SmoothLossFunction::steps_of(SmoothRows::Side side,
                                                       std::span<const double> factor) const {
  const SampledRows& rows = side == SmoothRows::Side::kInputs ? sampled_.inputs : sampled_.weights;
  std::vector<double> energy(rows.values.size());
  Steps steps{0, std::vector<double>(sampled_.channels)};
  rows_->soften(side, factor, energy, steps.share);
  steps.sum = sum_of_rows(energy);
  return steps;
}

// F(s) and, added to `gradient`, dF / d log s, up to the factor 1/12.
double SmoothLossFunction::add_gradient(std::span<const float> s, std::span<double> gradient) const {
  const std::vector<double>&weight_energy = sampled_.weight_energy, &input_energy = sampled_.input_energy;
  double input_side = 0, weight_side = 0;  // sum_k s_k^2 m_k, sum_k g_k / s_k^2
  std::vector<double> scale(s.begin(), s.end()), inverse(s.size());
  for (std::size_t k = 0; k < s.size(); ++k) {
    const double square = scale[k] * scale[k];
    inverse[k] = 1 / scale[k];
    input_side += square * weight_energy[k];
    weight_side += input_energy[k] / square;
  }
  const Steps tokens = steps_of(SmoothRows::Side::kInputs, inverse),
              weights = steps_of(SmoothRows::Side::kWeights, scale);
  for (std::size_t k = 0; k < s.size(); ++k) {
    const double square = scale[k] * scale[k];
    gradient[k] += 2 * (tokens.sum * square * weight_energy[k] - tokens.share[k] * input_side +
                        weights.share[k] * weight_side - weights.sum * input_energy[k] / square);
  }
  return tokens.sum * input_side + weights.sum * weight_side;
}

// Adam on log s with a falling rate: the gradient's size differs by orders of magnitude between channels.
std::vector<float> SmoothLossFunction::descend(std::vector<float> s) const {
  constexpr int kSteps = 60;
  constexpr double kRate = 0.08, kFirst = 0.9, kSecond = 0.95;
  std::vector<double> gradient(sampled_.channels), first(sampled_.channels), second(sampled_.channels),
      sum(sampled_.channels);
  const std::vector<std::int32_t>& producer = problem_.producer_of;
  for (int step = 1; step <= kSteps; ++step) {
    std::fill(gradient.begin(), gradient.end(), 0.0);
    const double value = add_gradient(s, gradient);
    if (!(value > 0) || !std::isfinite(value)) return s;
    if (!producer.empty()) {  // channels of one producer move together
      std::fill(sum.begin(), sum.end(), 0.0);
      for (std::size_t k = 0; k < sampled_.channels; ++k)
        sum[static_cast<std::size_t>(producer[k])] += gradient[k];
      for (std::size_t k = 0; k < sampled_.channels; ++k)
        gradient[k] = sum[static_cast<std::size_t>(producer[k])];
    }
    const double rate = kRate * (1.0 - static_cast<double>(step - 1) / kSteps),
                 seen_first = 1 - std::pow(kFirst, step), seen_second = 1 - std::pow(kSecond, step);
    each_channel(sampled_.channels, pool_, [&](std::size_t k) {
      const double g = gradient[k] / value;
      first[k] = kFirst * first[k] + (1 - kFirst) * g;
      second[k] = kSecond * second[k] + (1 - kSecond) * g * g;
      const double mean = first[k] / seen_first, size = std::sqrt(second[k] / seen_second);
      if (size > 0) s[k] *= static_cast<float>(std::exp(-rate * mean / (size + 1e-12)));
    });
  }
  return s;
}

}  // namespace llmq
