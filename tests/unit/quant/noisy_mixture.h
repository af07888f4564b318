// A small mixture that calibration can tell apart, jobs that quantize it, and what they lose of its output.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "captured_output.h"
#include "model/mixers/mixer.h"
#include "quant/pipeline/activation_stream.h"
#include "tests/unit/model/scratch_mixture.h"

namespace llmq {

inline constexpr std::int64_t kExpertSamples = 4, kExpertTokens = 24;

// Noise in the places where the scratch model has ramps.
class NoisyMixture : public ScratchMixture {
 public:
  NoisyMixture() {
    std::uint32_t seed = 1000;
    for (auto& [name, tensor] : tensors)
      if (name.find("mlp.") == std::string::npos && name.find("norm") == std::string::npos)
        tensor = noise_tensor(tensor.shape, ++seed);
  }
  // Two of the experts 1 to 4 are always ahead of expert 0.
  void starve_expert_0() {
    const std::vector<float> row = floats_of(noise_tensor({1, kHidden}, 77));
    std::vector<float> router;
    for (const float factor : {0.0f, 1.0f, -1.0f, 2.0f, -2.0f})
      for (const float value : row) router.push_back(factor * value);
    add_to_blocks("mlp.gate.weight", scratch_tensor("F32", {kExperts, kHidden}, router));
  }
};

inline CalibrationSet expert_samples() {
  CalibrationSet samples = some_samples(kExpertSamples, kExpertTokens);
  for (std::vector<std::int32_t>& ids : samples.samples)
    for (std::int32_t& id : ids) id %= 32;
  return samples;
}

// The samples behind the attention of the first block.
struct BehindAttention {
  explicit BehindAttention(const ScratchModel& model, int threads = 2, std::int64_t chunk = kExpertTokens)
      : checkpoint(model.open()),
        spec(ModelSpec::read(checkpoint)),
        backend(make_cpu_backend(threads)),
        weights(load_block(*backend, Compute::kFloat32, LinearSource::open(checkpoint), spec.blocks[0])),
        context(make_forward_context(spec, *backend, Compute::kFloat32, kExpertTokens)),
        samples(expert_samples()),
        stream(context, samples, chunk, false) {
    stream.embed(checkpoint, samples);
    stream.finish(0, 0, weights);
  }
  const MixtureSpec& mixture() const { return *spec.blocks[0].mixture(); }
  std::vector<std::vector<double>> rows() {
    std::vector<std::vector<double>> all;
    stream.each_input(mixture().input, 0, weights, Samples::kAll, [&](const TensorView& x) {
      for (std::int64_t r = 0; r < x.rows(); ++r)
        all.emplace_back(x.row<float>(r), x.row<float>(r) + x.cols());
    });
    return all;
  }

  Checkpoint checkpoint;
  ModelSpec spec;
  std::shared_ptr<Backend> backend;
  BlockWeights weights;
  ForwardContext context;
  CalibrationSet samples;
  ActivationStream stream;
};

struct ExpertJob {
  CapturedOutput output;
  QuantizeReport report;
  ExpertJob(const std::string& recipe, const Checkpoint& checkpoint, int threads = 2,
            std::int64_t at_once = 0, std::int64_t chunk = 0) {
    const ModelSpec spec = ModelSpec::read(checkpoint);
    Plan plan = make_plan(Recipe::parse(recipe, "r.yaml"), checkpoint, spec, Compute::kFloat32, 1, 0);
    EXPECT_EQ(plan.experts_at_once, plan.needs_calibration ? ScratchMixture::kExperts : 0);
    if (at_once != 0) plan.experts_at_once = at_once;
    if (chunk != 0) plan.chunk_tokens = chunk;
    report = run_pipeline(plan, checkpoint, spec, expert_samples(), *make_cpu_backend(threads), output, {});
  }
};

inline void expect_same_bytes(const ExpertJob& one, const ExpertJob& other) {
  ASSERT_EQ(one.output.quantized.size(), other.output.quantized.size());
  for (const auto& [module, matrix] : one.output.quantized) {
    EXPECT_EQ(matrix.codes, other.output.quantized.at(module).codes) << module;
    EXPECT_EQ(matrix.scales, other.output.quantized.at(module).scales) << module;
  }
  EXPECT_EQ(one.output.dense, other.output.dense);
  ASSERT_EQ(one.report.modules.size(), other.report.modules.size());
  for (std::size_t i = 0; i < one.report.modules.size(); ++i)
    EXPECT_EQ(one.report.modules[i].module, other.report.modules[i].module)
        << "the order of tensors in the files";
  EXPECT_EQ(one.report.mixtures, other.report.mixtures);
}

// Of the mixture's output on the calibration rows, in the first block and with its own attention.
inline double mixture_error(const ScratchModel& model, const std::string& method) {
  const Checkpoint checkpoint = model.open();
  const ExpertJob job(method +
                          "scheme: w3a16_g8_sym\nignore: [lm_head, 're:.*self_attn.*']\n"
                          "calibration: {samples: 4, sequence_length: 24}\n",
                      checkpoint);
  ScratchModel rounded;
  rounded.config = model.config;
  rounded.tensors = model.tensors;
  for (const auto& [module, matrix] : job.output.quantized) {
    std::vector<float> values(matrix.codes.size());
    ThreadPool one(1);
    dequantize(matrix, values, one);
    ScratchTensor& tensor = rounded.tensors.at(module + ".weight");
    tensor = scratch_tensor("F32", tensor.shape, values);
  }
  for (const auto& [name, dense] : job.output.dense) {  // what a fold changed
    ScratchTensor& tensor = rounded.tensors.at(name);
    EXPECT_EQ(tensor.bytes.size(), dense.bytes.size()) << name;
    tensor.bytes.assign(reinterpret_cast<const char*>(dense.bytes.data()), dense.bytes.size());
  }
  BehindAttention original(model), quantized(rounded);
  const auto outputs = [&](BehindAttention& at) {
    std::vector<float> all;
    at.stream.each_input(at.mixture().input, 0, at.weights, Samples::kAll, [&](const TensorView& x) {
      std::vector<float> y(static_cast<std::size_t>(x.shape.elements()));
      const BatchRows batch;
      const KvPages pages;
      run_mixer({at.context, at.weights, batch, pages}, at.mixture(), x,
                TensorView(y.data(), DType::kF32, x.shape));
      all.insert(all.end(), y.begin(), y.end());
    });
    return all;
  };
  const std::vector<float> want = outputs(original), found = outputs(quantized);
  double lost = 0, whole = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    lost += std::pow(static_cast<double>(found[i]) - want[i], 2);
    whole += std::pow(static_cast<double>(want[i]), 2);
  }
  return lost / whole;
}

// Of what rounding loses: at most `solved` where GPTQ rounds, and `scaled` by AWQ alone.
inline void expect_less_lost_than_by_rounding(const ScratchModel& model, double solved, double scaled) {
  const double rounding = mixture_error(model, "method: rtn\n");
  for (const auto& [method, most] : {std::pair{"method: gptq\n", solved},
                                     {"method: awq\n", scaled},
                                     {"method: [awq, gptq]\ngptq: {upstream_share: 0}\n", solved}}) {
    const double error = mixture_error(model, method);
    std::printf("relative output error of a mixture: %.4f, rtn %.4f, %s", error, rounding, method);
    EXPECT_LT(error, most * rounding) << method;
  }
}

}  // namespace llmq
