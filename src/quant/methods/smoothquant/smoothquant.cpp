#include "quant/methods/smoothquant/smoothquant.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "quant/methods/smoothquant/each_channel.h"
#include "quant/methods/smoothquant/lane_sums.h"
#include "quant/methods/smoothquant/smooth_loss.h"

namespace llmq {
namespace {

constexpr float kLeast = 1e-5f;
constexpr int kAlphas = 20;  // steps from 0 to 1

// Largest |w| of each channel over all readers.
std::vector<float> largest_weights(const ScaleProblem& problem, std::size_t channels, ThreadPool& pool) {
  std::vector<float> largest(channels);
  each_columns(channels, pool, [&](std::size_t first, std::size_t count) {
    float most[kColumnsTogether];  // of its own: no weight lies there
    std::fill_n(most, count, kLeast);
    for (const ScaleReader& reader : problem.readers)
      for (std::size_t at = first; at < reader.weight.size(); at += channels) {
        const float* const w = reader.weight.data() + at;
        by_lanes(count, [&](std::size_t k, std::size_t) { most[k] = greater_of(most[k], std::fabs(w[k])); });
      }
    std::copy_n(most, count, largest.data() + first);
  });
  return largest;
}

// Channels of one producer take the largest of theirs.
void max_over_producer(std::vector<float>& values, const std::vector<std::int32_t>& producer_of) {
  if (producer_of.empty()) return;
  std::vector<float> largest(values.size(), 0.0f);
  for (std::size_t k = 0; k < values.size(); ++k) {
    float& shared = largest[static_cast<std::size_t>(producer_of[k])];
    shared = std::max(shared, values[k]);
  }
  for (std::size_t k = 0; k < values.size(); ++k)
    values[k] = largest[static_cast<std::size_t>(producer_of[k])];
}

// Geometric mean 1 over the active channels, 1 where nothing was ever active: neither activations nor weights
// grow as a whole, and a channel that wakes up later finds its weights as they were.
void normalize(std::vector<float>& s, std::span<const float> seen, ThreadPool& pool) {
  const auto is_active = [&](std::size_t k) { return seen[k] > 0 && s[k] > 0 && std::isfinite(s[k]); };
  std::vector<double> logs(s.size());
  each_channel(s.size(), pool,
               [&](std::size_t k) { logs[k] = is_active(k) ? std::log(static_cast<double>(s[k])) : 0; });
  double sum = 0;
  std::size_t active = 0;
  for (std::size_t k = 0; k < s.size(); ++k)
    if (is_active(k)) {
      sum += logs[k];
      ++active;
    }
  const auto mean = static_cast<float>(active == 0 ? 1.0 : std::exp(sum / static_cast<double>(active)));
  for (std::size_t k = 0; k < s.size(); ++k) {
    s[k] /= mean;
    if (!(seen[k] > 0) || !(s[k] > 0) || !std::isfinite(s[k])) s[k] = 1.0f;
  }
}

std::vector<float> powers(const std::vector<float>& inputs, const std::vector<float>& weights, double alpha,
                          std::span<const float> seen, ThreadPool& pool) {
  std::vector<float> s(inputs.size());
  each_channel(s.size(), pool, [&](std::size_t k) {
    s[k] = static_cast<float>(std::pow(static_cast<double>(inputs[k]), alpha) /
                              std::pow(static_cast<double>(weights[k]), 1 - alpha));
  });
  normalize(s, seen, pool);
  return s;
}

}  // namespace

SmoothLoss smooth_loss(const ScaleProblem& problem, std::span<const float> s, Backend& backend) {
  return SmoothLossFunction(problem, backend.workers(), &backend).loss(s);
}

SmoothScales search_smooth_scales(const ScaleProblem& problem, const SmoothQuantOptions& options,
                                  Backend& backend) {
  ThreadPool& pool = backend.workers();
  std::vector<float> seen(problem.stats->absolute_max().begin(), problem.stats->absolute_max().end());
  max_over_producer(seen, problem.producer_of);
  std::vector<float> inputs = seen;
  for (float& value : inputs) value = std::max(value, kLeast);
  std::vector<float> weights = largest_weights(problem, inputs.size(), pool);
  max_over_producer(weights, problem.producer_of);
  if (options.alpha) return {powers(inputs, weights, *options.alpha, seen, pool), {}, {}, false};

  if (problem.rows == nullptr || problem.rows->rows() == 0)
    fail(ErrorKind::kInternal, "SmoothQuant's search was given no sampled rows");
  const SmoothLossFunction judge(problem, pool, &backend);
  SmoothScales best;
  best.s.assign(inputs.size(), 1.0f);
  best.loss = best.identity_loss = judge.loss(best.s);
  best.identity = true;
  const auto consider = [&](std::vector<float> s) {
    const SmoothLoss loss = judge.loss(s);
    if (!std::isfinite(loss.whole()) || !(loss.whole() < best.loss.whole())) return;
    best.loss = loss;
    best.s = std::move(s);
    best.identity = false;
  };
  std::vector<float> typical = judge.typical_inputs();
  max_over_producer(typical, problem.producer_of);
  for (float& value : typical) value = std::max(value, kLeast);
  for (const std::vector<float>* magnitudes : {&inputs, &typical})
    for (int i = 0; i <= kAlphas; ++i)
      consider(powers(*magnitudes, weights, static_cast<double>(i) / kAlphas, seen, pool));
  std::vector<float> descended = judge.descend(best.s);
  normalize(descended, seen, pool);
  consider(std::move(descended));
  return best;
}

}  // namespace llmq
