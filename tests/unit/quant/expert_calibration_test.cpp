// Calibration of the experts of a mixture: whose rows are summed, what stands in where there are few, and
// what must not change a byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "captured_output.h"
#include "model/mixers/mixer.h"
#include "quant/pipeline/activation_stream.h"
#include "quant/plan/memory_limit.h"
#include "tests/unit/model/scratch_mixture.h"

namespace llmq {
namespace {

constexpr const char* kGptqOfExperts =
    "method: gptq\nscheme: w4a16_g8_sym\nignore: [lm_head]\ncalibration: {samples: 4, sequence_length: 24}\n";
constexpr std::int64_t kExpertSamples = 4, kExpertTokens = 24;

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

CalibrationSet expert_samples() {
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

std::vector<double> product_with(const std::vector<float>& weight, const std::vector<double>& x) {
  std::vector<double> y(weight.size() / x.size());
  for (std::size_t r = 0; r < y.size(); ++r)
    for (std::size_t k = 0; k < x.size(); ++k) y[r] += static_cast<double>(weight[r * x.size() + k]) * x[k];
  return y;
}

void expect_gram(const InputStats& stats, const std::vector<std::vector<double>>& rows) {
  ASSERT_EQ(stats.tokens(), static_cast<std::int64_t>(rows.size()));
  const std::int64_t k = stats.channels();
  double worst = 0, greatest = 0;
  for (std::int64_t i = 0; i < k; ++i)
    for (std::int64_t j = 0; j < k; ++j) {
      double want = 0;
      for (const std::vector<double>& x : rows)
        want += x[static_cast<std::size_t>(i)] * x[static_cast<std::size_t>(j)];
      worst = std::max(worst, std::abs(want - stats.gram_at(i, j)));
      greatest = std::max(greatest, std::abs(want));
    }
  EXPECT_LE(worst, 2e-6 * greatest);
}

// By the definition of routing, and every sum in FP64.
TEST(ExpertStatistics, AreThoseOfExactlyItsRows) {
  const NoisyMixture model;
  BehindAttention at(model);
  const std::vector<std::vector<double>> rows = at.rows();
  const auto weight = [&](const std::string& name) {
    return floats_of(model.tensors.at("model.layers.0.mlp." + name + ".weight"));
  };
  std::vector<std::vector<std::vector<double>>> own(ScratchMixture::kExperts);
  for (const std::vector<double>& x : rows) {
    const std::vector<double> answer = product_with(weight("gate"), x);
    std::vector<double> sorted = answer;
    std::sort(sorted.rbegin(), sorted.rend());
    for (std::size_t e = 0; e < answer.size(); ++e)
      if (answer[e] >= sorted[1]) own[e].push_back(x);
  }
  std::vector<SeenExpert> seen;
  for (std::size_t e = 0; e < own.size(); ++e) seen.push_back({&at.mixture().experts[e], e});
  const std::vector<std::int64_t> counts = at.stream.routed_rows(0, at.weights);
  const std::vector<InputStats> read = at.stream.expert_statistics(0, at.weights, seen,
                                                                   ExpertInput::kOfGateAndUp),
                                made =
                                    at.stream.expert_statistics(0, at.weights, seen, ExpertInput::kOfOutput);
  const auto inner = [&](std::size_t e, const std::vector<std::vector<double>>& inputs) {
    std::vector<std::vector<double>> result;
    for (const std::vector<double>& x : inputs) {
      const std::vector<double> gate = product_with(weight(fmt::format("experts.{}.gate_proj", e)), x);
      std::vector<double>& y =
          result.emplace_back(product_with(weight(fmt::format("experts.{}.up_proj", e)), x));
      for (std::size_t i = 0; i < y.size(); ++i) y[i] *= gate[i] / (1 + std::exp(-gate[i]));
    }
    return result;
  };
  for (std::size_t e = 0; e < own.size(); ++e) {
    SCOPED_TRACE(fmt::format("expert {}", e));
    EXPECT_GT(own[e].size(), 0u);
    EXPECT_LT(own[e].size(), rows.size()) << "else there is nothing to see";
    EXPECT_EQ(counts[e], static_cast<std::int64_t>(own[e].size()));
    expect_gram(read[e], own[e]);
    expect_gram(made[e], inner(e, own[e]));
  }
  const SeenExpert every{&at.mixture().experts[1], std::nullopt};
  expect_gram(at.stream.expert_statistics(0, at.weights, {&every, 1}, ExpertInput::kOfOutput).front(),
              inner(1, rows));
}

TEST(ExpertStatistics, DependOnNoThreadsChunksOrNeighbours) {
  const NoisyMixture model;
  BehindAttention one(model, 1), many(model, 3, kExpertSamples * kExpertTokens);
  std::vector<SeenExpert> seen, of_many;
  for (std::size_t e = 0; e < ScratchMixture::kExperts; ++e) {
    seen.push_back({&one.mixture().experts[e], e});
    of_many.push_back({&many.mixture().experts[e], e});
  }
  for (const ExpertInput input : {ExpertInput::kOfGateAndUp, ExpertInput::kOfOutput}) {
    const std::vector<InputStats> all = many.stream.expert_statistics(0, many.weights, of_many, input);
    for (std::size_t e = 0; e < seen.size(); ++e)
      EXPECT_EQ(
          one.stream.expert_statistics(0, one.weights, std::span(seen).subspan(e, 1), input).front().save(),
          all[e].save())
          << e;
  }
}

// H = (n H_e + n0 H_all) / (n + n0), of mean matrices.
TEST(ExpertStatistics, ThePriorIsAMeanOfMeans) {
  const auto backend = make_cpu_backend(1);
  const std::vector<float> own = floats_of(noise_tensor({6, 4}, 5)),
                           all = floats_of(noise_tensor({50, 4}, 6));
  InputStats expert(4), layer(4), none(4);
  expert.add(*backend, TensorView(own.data(), DType::kF32, {6, 4}));
  layer.add(*backend, TensorView(all.data(), DType::kF32, {50, 4}));
  const InputStats alone = expert;
  expert.add_prior(layer, 10);
  none.add_prior(layer, 10);
  EXPECT_EQ(expert.tokens(), 16);
  for (std::int64_t i = 0; i < 4; ++i)
    for (std::int64_t j = i; j < 4; ++j) {
      const double of_expert = alone.gram_at(i, j) / 6, of_layer = layer.gram_at(i, j) / 50;
      EXPECT_NEAR(expert.gram_at(i, j) / 16, (6 * of_expert + 10 * of_layer) / 16, 1e-12);
      EXPECT_NEAR(none.gram_at(i, j) / 10, of_layer, 1e-12);
    }
  EXPECT_THROW(layer.add_prior(none = InputStats(4), 3), Error);
}

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

void expect_same_bytes(const ExpertJob& one, const ExpertJob& other) {
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

TEST(ExpertCalibration, ExpertsAtOnceThreadsAndChunksChangeNoByte) {
  const NoisyMixture model;
  const Checkpoint checkpoint = model.open();
  for (const std::string& more : {std::string(), std::string("gptq: {upstream_share: 0.5}\n")}) {
    SCOPED_TRACE(more);
    const std::string recipe = kGptqOfExperts + more;
    const ExpertJob all(recipe, checkpoint);
    expect_same_bytes(all, ExpertJob(recipe, checkpoint, 2, 1));
    expect_same_bytes(all, ExpertJob(recipe, checkpoint, 1, 2));
    if (more.empty()) expect_same_bytes(all, ExpertJob(recipe, checkpoint, 3, 3, kExpertTokens));
  }
}

TEST(ExpertCalibration, AMemoryLimitTakesFewerAtOnce) {
  const NoisyMixture model;
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const auto planned = [&](std::uint64_t limit) {
    return make_plan(Recipe::parse(kGptqOfExperts, "r.yaml"), checkpoint, spec, Compute::kFloat32, 1, limit);
  };
  Plan plan = planned(0);
  const std::uint64_t whole = estimate_costs(plan, checkpoint, spec, 1).peak_bytes;
  EXPECT_EQ(planned(memory_needed(whole)).experts_at_once, 5);
  plan.experts_at_once = 2;
  const std::uint64_t of_two = estimate_costs(plan, checkpoint, spec, 1).peak_bytes;
  EXPECT_LT(of_two, whole);
  const Plan limited = planned(memory_needed(of_two));
  EXPECT_EQ(limited.experts_at_once, 2);
  EXPECT_TRUE(limited.keep_inputs) << "fewer experts come first";
}

TEST(ExpertCalibration, RoutersStayAndEveryOtherLinearIsQuantized) {
  const NoisyMixture model;
  const Checkpoint checkpoint = model.open();
  const ExpertJob job(kGptqOfExperts, checkpoint);
  for (const BlockSpec& block : ModelSpec::read(checkpoint).blocks)
    for (const LinearSpec& linear : block.linears)
      EXPECT_EQ(job.output.quantized.count(linear.module), linear.quantizable ? 1u : 0u) << linear.module;
  for (const char* router : {"gate", "shared_expert_gate"}) {
    const std::string name = fmt::format("model.layers.1.mlp.{}.weight", router);
    EXPECT_EQ(std::memcmp(job.output.dense.at(name).bytes.data(), model.tensors.at(name).bytes.data(),
                          model.tensors.at(name).bytes.size()),
              0);
  }
}

TEST(ExpertCalibration, AStarvedExpertSeesAllRowsAndIsReported) {
  NoisyMixture model;
  model.starve_expert_0();
  const Checkpoint checkpoint = model.open();
  const ExpertJob job(kGptqOfExperts, checkpoint);
  ASSERT_EQ(job.report.mixtures.size(), 2u);
  for (const Json& mixture : job.report.mixtures) {
    std::int64_t sum = 0;
    for (const Json& tokens : mixture.at("tokens").items()) sum += tokens.as_integer();
    EXPECT_EQ(sum, 2 * kExpertSamples * kExpertTokens);
    EXPECT_EQ(mixture.at("experts").as_integer(), 5);
    EXPECT_EQ(mixture.at("tokens_min").as_integer(), 0);
    EXPECT_EQ(mixture.at("tokens_median").as_integer() + mixture.at("tokens_max").as_integer() > 0, true);
    EXPECT_EQ(mixture.at("prior_tokens").as_integer(), 8);
    EXPECT_EQ(mixture.at("starved_below").as_integer(), 24);
    EXPECT_EQ(mixture.at("unreached").dump(), "[0]");
    for (const Json& error : mixture.at("relative_error").items()) EXPECT_GT(error.as_double(), 0);
    for (std::size_t e = 0; e < 5; ++e) {
      const bool starved = mixture.at("tokens").items()[e].as_integer() < 24;
      const auto& list = mixture.at("starved").items();
      EXPECT_EQ(
          std::any_of(list.begin(), list.end(),
                      [&](const Json& one) { return one.as_integer() == static_cast<std::int64_t>(e); }),
          starved)
          << e;
    }
  }
  for (const ModuleReport& module : job.report.modules) {
    if (module.module.find("experts.0.") == std::string::npos) continue;
    EXPECT_GT(module.rtn_loss, 0) << module.module << " was calibrated on no row";
    EXPECT_LT(module.loss, module.rtn_loss) << module.module;
    for (const float scale : job.output.quantized.at(module.module).scales)
      EXPECT_TRUE(std::isfinite(scale) && scale != 0) << module.module;
  }
  EXPECT_THAT(job.report.warnings, ::testing::Contains(::testing::HasSubstr(
                                       "of 5 experts had fewer than 24 calibration tokens, 1 of them none")));
}

// Of the mixture's output on the calibration rows, in the first block and with its own attention.
double mixture_error(const NoisyMixture& model, const std::string& method) {
  const Checkpoint checkpoint = model.open();
  const ExpertJob job(method +
                          "scheme: w3a16_g8_sym\nignore: [lm_head, 're:.*self_attn.*']\n"
                          "calibration: {samples: 4, sequence_length: 24}\n",
                      checkpoint);
  NoisyMixture rounded;
  rounded.tensors = model.tensors;
  for (const auto& [module, matrix] : job.output.quantized) {
    std::vector<float> values(matrix.codes.size());
    ThreadPool one(1);
    dequantize(matrix, values, one);
    ScratchTensor& tensor = rounded.tensors.at(module + ".weight");
    tensor = scratch_tensor("F32", tensor.shape, values);
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

TEST(ExpertCalibration, GptqLosesLessOfAMixturesOutputThanRounding) {
  const NoisyMixture model;
  const double gptq = mixture_error(model, "method: gptq\n"),
               rounding = mixture_error(model, "method: rtn\n");
  std::printf("relative output error of a mixture: gptq %.4f, rtn %.4f\n", gptq, rounding);
  EXPECT_LT(gptq, 0.8 * rounding);
}

}  // namespace
}  // namespace llmq
