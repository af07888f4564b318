// One linear with inputs, to be rounded by GPTQ.
#pragma once
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "quant/methods/gptq/gptq.h"
#include "quant/methods/rtn.h"

namespace llmq {

struct GptqFixture {
  std::shared_ptr<Backend> backend = make_cpu_backend(2);
  std::int64_t rows, channels, tokens;
  std::vector<float> weight, x;
  InputStats stats;
  QuantScheme scheme;

  // Neighbouring channels are alike and some are loud, as in decoder blocks.
  GptqFixture(std::int64_t out, std::int64_t in, std::int64_t count, std::uint32_t seed = 5)
      : rows(out),
        channels(in),
        tokens(count),
        weight(static_cast<std::size_t>(out * in)),
        x(static_cast<std::size_t>(count * in)),
        stats(in) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    for (float& w : weight) w = 0.05f * normal(generator);
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t k = 0; k < channels; ++k) {
        const auto i = static_cast<std::size_t>(t * channels + k);
        x[i] = normal(generator) * (k % 16 == 3 ? 5.0f : 1.0f) + (k > 0 ? 0.6f * x[i - 1] : 0.0f);
      }
    scheme.group_size = 16;
  }
  void see_inputs() { stats.add(*backend, TensorView(x.data(), DType::kF32, {tokens, channels})); }
  void silence(std::int64_t channel) {
    for (std::int64_t t = 0; t < tokens; ++t) x[static_cast<std::size_t>(t * channels + channel)] = 0;
  }
  RoundingProblem problem() const { return {weight, rows, channels, &stats, scheme, nullptr}; }
  QuantizedMatrix quantize(const GptqOptions& options = {}) const {
    return make_gptq(options, Compute::kFloat32)->quantize(problem(), *backend);
  }
  double rtn_loss() const { return make_rtn(Compute::kFloat32)->quantize(problem(), *backend).loss; }
};

inline GptqOptions plain_gptq(RoundingOrder order) {
  GptqOptions options;
  options.order = order;
  options.scale_search = GptqOptions::ScaleSearch::kMinMax;
  options.refit_scales = false;
  options.retry_scales = false;
  options.descent_sweeps = 0;
  return options;
}

}  // namespace llmq
