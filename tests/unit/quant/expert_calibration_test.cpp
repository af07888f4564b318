// Calibration of the experts of a mixture: whose rows are summed, what stands in where there are few, and
// what must not change a byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "noisy_mixture.h"
#include "quant/plan/memory_limit.h"

namespace llmq {
namespace {

constexpr const char* kOfExperts =
    "scheme: w4a16_g8_sym\nignore: [lm_head]\ncalibration: {samples: 4, sequence_length: 24}\n";
const std::string kGptqOfExperts = std::string("method: gptq\n") + kOfExperts;
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
  const std::vector<std::int64_t> counts = at.stream.routed_rows(0, at.weights);
  for (std::size_t e = 0; e < own.size(); ++e) seen.push_back({&at.mixture().experts[e], e, counts[e]});
  std::vector<RowSample> sampled;
  const std::vector<InputStats> read = at.stream.expert_statistics(0, at.weights, seen,
                                                                   ExpertInput::kOfGateAndUp, &sampled),
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
    ASSERT_EQ(sampled[e].rows(), counts[e]) << "fewer than are wanted: all of them";
    for (std::size_t r = 0; r < own[e].size(); ++r)
      for (std::size_t k = 0; k < own[e][r].size(); ++k)
        ASSERT_EQ(sampled[e].row(static_cast<std::int64_t>(r))[k], own[e][r][k]);
  }
  const SeenExpert every{&at.mixture().experts[1], std::nullopt};
  expect_gram(at.stream.expert_statistics(0, at.weights, {&every, 1}, ExpertInput::kOfOutput).front(),
              inner(1, rows));
}

TEST(ExpertStatistics, DependOnNoThreadsOrNeighbours) {
  const NoisyMixture model;
  BehindAttention one(model, 1), many(model, 3);
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

TEST(ExpertCalibration, ExpertsAtOnceAndThreadsChangeNoByte) {
  const NoisyMixture model;
  const Checkpoint checkpoint = model.open();
  for (const char* method :
       {"method: gptq\n", "method: gptq\ngptq: {upstream_share: 0.5}\n", "method: awq\n",
        "method: [awq, gptq]\n", "method: awq\nawq: {salient_fp16: 0.1}\nformat: safetensors\n"}) {
    SCOPED_TRACE(method);
    const std::string recipe = std::string(method) + kOfExperts;
    const ExpertJob all(recipe, checkpoint, 2, 0, kExpertTokens);  // chunk by chunk
    expect_same_bytes(all, ExpertJob(recipe, checkpoint, 2, 1, kExpertTokens));
    expect_same_bytes(all, ExpertJob(recipe, checkpoint, 1, 2, kExpertTokens));
    expect_same_bytes(all, ExpertJob(recipe, checkpoint, 3, 3, kExpertTokens));
  }
}

TEST(ExpertCalibration, AMemoryLimitTakesFewerAtOnce) {
  const NoisyMixture model;
  const Checkpoint checkpoint = model.open();
  const ModelSpec spec = ModelSpec::read(checkpoint);
  const auto planned = [&](std::uint64_t limit, const std::string& recipe = kGptqOfExperts) {
    return make_plan(Recipe::parse(recipe, "r.yaml"), checkpoint, spec, Compute::kFloat32, 1, limit);
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
  // A weight beside its scaled self, and the sample that a search judges.
  const Plan folds = planned(0, "method: [awq, gptq]\ngptq: {upstream_share: 0}\n" + std::string(kOfExperts));
  EXPECT_GT(estimate_costs(folds, checkpoint, spec, 1).peak_bytes, whole);
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

// The scale at the norm is judged by what rows read: an expert that has none does not bend it.
// Inputs of 8 bits, with scales of each row and of the whole: the same bytes whatever goes at once, judged on
// rows of each expert, of one without any, too.
TEST(ExpertCalibration, EightBitInputsOfExpertsAreJudgedOnTheirRows) {
  NoisyMixture model;
  model.starve_expert_0();
  const Checkpoint checkpoint = model.open();
  const std::string few = "ignore: [lm_head]\ncalibration: {samples: 4, sequence_length: 24}\n";
  for (const char* method : {"method: gptq\nscheme: w4a8_g8\n", "method: smoothquant\nscheme: w8a8\n",
                             "method: rtn\nscheme: fp8_static\n", "method: awq\nscheme: w4a8_g8\n",
                             "method: [smoothquant, gptq]\nscheme: w4a8_g8\nsmoothquant: {alpha: 0.5}\n"}) {
    SCOPED_TRACE(method);
    const ExpertJob job(method + few, checkpoint);
    expect_same_bytes(job, ExpertJob(method + few, checkpoint, 1, 2));
    for (const ModuleReport& module : job.report.modules) {
      EXPECT_TRUE(module.input_error > 0 && module.input_error < 0.01) << module.module;
      const QuantizedMatrix& matrix = job.output.quantized.at(module.module);
      const bool is_static = matrix.scheme.calibrates_inputs();
      EXPECT_TRUE(!is_static || (std::isfinite(matrix.input_scale) && matrix.input_scale > 0));
    }
  }
}

// The fold of experts is off, and the plan says so; attention is smoothed as in every model.
TEST(ExpertCalibration, SmoothQuantLeavesTheNormOfExpertsAlone) {
  const NoisyMixture model;
  const Checkpoint checkpoint = model.open();
  const std::string recipe =
      "method: smoothquant\nscheme: w8a8\nsmoothquant: {alpha: 0.5}\n"
      "calibration: {samples: 4, sequence_length: 24}\n";
  const ExpertJob job(recipe, checkpoint);
  const auto stays = [&](const char* name) {
    const std::string tensor = std::string("model.layers.0.") + name + ".weight";
    const std::string& was = model.tensors.at(tensor).bytes;
    return std::memcmp(job.output.dense.at(tensor).bytes.data(), was.data(), was.size()) == 0;
  };
  EXPECT_TRUE(stays("post_attention_layernorm"));
  EXPECT_TRUE(stays("mlp.gate"));
  EXPECT_FALSE(stays("input_layernorm"));
  const Plan plan = make_plan(Recipe::parse(recipe, "r.yaml"), checkpoint, ModelSpec::read(checkpoint),
                              Compute::kFloat32, 1, 0);
  EXPECT_THAT(plan.warnings, ::testing::Contains(::testing::HasSubstr("no scale out of x_mlp and x_down:")));
}

TEST(ExpertCalibration, AnExpertWithoutRowsHasNoPartInTheScale) {
  NoisyMixture model, bent;
  for (NoisyMixture* each : {&model, &bent}) each->starve_expert_0();
  for (const char* name :
       {"model.layers.0.mlp.experts.0.gate_proj.weight", "model.layers.0.mlp.experts.0.up_proj.weight"}) {
    std::vector<float> values = floats_of(bent.tensors.at(name));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] *= i % 3 == 0 ? 40.0f : 0.1f;
    bent.tensors.at(name) = scratch_tensor("F32", bent.tensors.at(name).shape, values);
  }
  const std::string recipe = std::string("method: awq\n") + kOfExperts;
  const ExpertJob one(recipe, model.open()), other(recipe, bent.open());
  const std::string norm = "model.layers.0.post_attention_layernorm.weight";
  EXPECT_EQ(one.output.dense.at(norm), other.output.dense.at(norm));
  EXPECT_NE(std::memcmp(one.output.dense.at(norm).bytes.data(), model.tensors.at(norm).bytes.data(),
                        model.tensors.at(norm).bytes.size()),
            0)
      << "else nothing moved";
  EXPECT_NE(one.output.quantized.at("model.layers.0.mlp.experts.0.gate_proj").codes,
            other.output.quantized.at("model.layers.0.mlp.experts.0.gate_proj").codes);
}

TEST(ExpertCalibration, EveryMethodLosesLessOfAMixturesOutputThanRounding) {
  expect_less_lost_than_by_rounding(NoisyMixture(), 0.4, 0.85);
}

}  // namespace
}  // namespace llmq
