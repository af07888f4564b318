#include "quant/smoothquant.h"

#include <algorithm>
#include <cmath>

namespace llmq {
namespace {

constexpr float kLeast = 1e-5f;

// Largest |w| of each channel over all readers.
std::vector<float> largest_weights(const ScaleProblem& problem, std::size_t channels) {
  std::vector<float> largest(channels, kLeast);
  for (const ScaleReader& reader : problem.readers)
    for (std::size_t i = 0; i < reader.weight.size(); ++i)
      largest[i % channels] = std::max(largest[i % channels], std::fabs(reader.weight[i]));
  return largest;
}

// Channels of one producer take the largest of theirs.
void share(std::vector<float>& values, const std::vector<std::int32_t>& producer_of) {
  if (producer_of.empty()) return;
  std::vector<float> of(values.size(), 0.0f);
  for (std::size_t k = 0; k < values.size(); ++k) {
    float& shared = of[static_cast<std::size_t>(producer_of[k])];
    shared = std::max(shared, values[k]);
  }
  for (std::size_t k = 0; k < values.size(); ++k) values[k] = of[static_cast<std::size_t>(producer_of[k])];
}

}  // namespace

std::vector<float> smooth_scales(const ScaleProblem& problem, const SmoothQuantOptions& options) {
  const std::span<const float> seen = problem.stats->absolute_max();
  std::vector<float> inputs(seen.begin(), seen.end());
  for (float& value : inputs) value = std::max(value, kLeast);
  std::vector<float> weights = largest_weights(problem, inputs.size());
  share(inputs, problem.producer_of);
  share(weights, problem.producer_of);
  std::vector<float> s(inputs.size());
  for (std::size_t k = 0; k < s.size(); ++k)
    s[k] = static_cast<float>(std::pow(inputs[k], options.alpha) / std::pow(weights[k], 1 - options.alpha));
  return s;
}

}  // namespace llmq
