// Experts whose weights multiply what they read (Llama 4): the weights are in every statistic of them, and in
// no statistic of the expert that all rows pass.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "noisy_mixture.h"
#include "unit/model/scratch_llama4.h"

namespace llmq {
namespace {

using Rows = std::vector<std::vector<double>>;

std::vector<double> answers_of(const ScratchModel& model, const std::string& module,
                               const std::vector<double>& x) {
  const std::vector<float> weight =
      floats_of(model.tensors.at("model.layers.0.feed_forward." + module + ".weight"));
  std::vector<double> y(weight.size() / x.size());
  for (std::size_t r = 0; r < y.size(); ++r)
    for (std::size_t k = 0; k < x.size(); ++k) y[r] += static_cast<double>(weight[r * x.size() + k]) * x[k];
  return y;
}

Rows behind_gate_and_up(const ScratchModel& model, std::size_t e, const Rows& inputs) {
  Rows made;
  for (const std::vector<double>& x : inputs) {
    const std::vector<double> gate = answers_of(model, fmt::format("experts.{}.gate_proj", e), x);
    std::vector<double>& y = made.emplace_back(answers_of(model, fmt::format("experts.{}.up_proj", e), x));
    for (std::size_t i = 0; i < y.size(); ++i) y[i] *= gate[i] / (1 + std::exp(-gate[i]));
  }
  return made;
}

void expect_gram_of(const InputStats& stats, const Rows& rows) {
  ASSERT_EQ(stats.tokens(), static_cast<std::int64_t>(rows.size()));
  double worst = 0, greatest = 0;
  for (std::int64_t i = 0; i < stats.channels(); ++i)
    for (std::int64_t j = 0; j < stats.channels(); ++j) {
      double want = 0;
      for (const std::vector<double>& x : rows)
        want += x[static_cast<std::size_t>(i)] * x[static_cast<std::size_t>(j)];
      worst = std::max(worst, std::abs(want - stats.gram_at(i, j)));
      greatest = std::max(greatest, std::abs(want));
    }
  EXPECT_LE(worst, 2e-6 * greatest);
}

Rows times(const Rows& rows, double factor) {
  Rows scaled = rows;
  for (std::vector<double>& row : scaled)
    for (double& value : row) value *= factor;
  return scaled;
}

// By the definition: the two greatest answers, and their sigmoids.
TEST(WeighedInputs, AreInWhatIsSeenOfAnExpert) {
  const ScratchLlama4 model;
  BehindAttention at(model);
  const Rows rows = at.rows();
  std::vector<Rows> own(ScratchLlama4::kExperts);
  std::vector<double> squares(own.size());
  for (const std::vector<double>& x : rows) {
    const std::vector<double> answer = answers_of(model, "router", x);
    std::vector<double> sorted = answer;
    std::sort(sorted.rbegin(), sorted.rend());
    for (std::size_t e = 0; e < own.size(); ++e)
      if (answer[e] >= sorted[1]) {
        const double weight = 1 / (1 + std::exp(-answer[e]));
        squares[e] += weight * weight;
        own[e].push_back(times({x}, weight).front());
      }
  }
  std::vector<double> counted;
  const std::vector<std::int64_t> counts = at.stream.routed_rows(0, at.weights, &counted);
  std::vector<SeenExpert> seen;
  for (std::size_t e = 0; e < own.size(); ++e) {
    EXPECT_NEAR(counted[e], squares[e], 1e-5 * squares[e]);
    EXPECT_LT(counted[e], static_cast<double>(counts[e]));
    seen.push_back({&at.mixture().experts[e], e, counts[e]});
  }
  const std::vector<InputStats> read =
      at.stream.expert_statistics(0, at.weights, seen, ExpertInput::kOfGateAndUp);
  const std::vector<InputStats> made =
      at.stream.expert_statistics(0, at.weights, seen, ExpertInput::kOfOutput);
  for (std::size_t e = 0; e < own.size(); ++e) {
    SCOPED_TRACE(fmt::format("expert {}", e));
    ASSERT_GT(own[e].size(), 0u);
    expect_gram_of(read[e], own[e]);
    expect_gram_of(made[e], behind_gate_and_up(model, e, own[e]));
  }
  const SeenExpert every{&at.mixture().experts[1], std::nullopt, at.stream.tokens(), 0.5f};
  expect_gram_of(at.stream.expert_statistics(0, at.weights, {&every, 1}, ExpertInput::kOfOutput).front(),
                 behind_gate_and_up(model, 1, times(rows, 0.5)));
}

// Where a row stands for rows that are weighed, it is weighed as they are: of equal matrices, an expert that
// all rows reach with weights of 1/2, one that none reaches, and the one that all rows pass.
TEST(WeighedInputs, AreInThePriorAndNotInTheExpertOfAllRows) {
  ScratchLlama4 model;
  const std::string at = "model.layers.0.feed_forward.";
  model.tensors.at(at + "router.weight") = scratch_tensor(
      "F32", {5, 16}, std::vector<float>(5 * 16));  // answers of 0: the first two experts, sigmoid(0)
  for (const char* linear : {".gate_proj.weight", ".up_proj.weight", ".down_proj.weight"})
    for (const char* other : {"experts.4", "shared_expert"})
      model.tensors.at(at + other + linear) = model.tensors.at(at + "experts.0" + linear);
  const ExpertJob job(
      "method: gptq\nscheme: w4a16_g8_sym\nignore: [lm_head]\n"
      "calibration: {samples: 4, sequence_length: 24}\n",
      model.open());
  const auto loss = [&](const std::string& module) {
    const auto found = std::find_if(job.report.modules.begin(), job.report.modules.end(),
                                    [&](const ModuleReport& one) { return one.module == at + module; });
    EXPECT_NE(found, job.report.modules.end()) << module;
    return found == job.report.modules.end() ? 0 : found->rtn_loss;
  };
  const double rows = kExpertSamples * kExpertTokens, prior = 8, whole = loss("shared_expert.gate_proj");
  EXPECT_NEAR(loss("experts.0.gate_proj") / whole, 0.25 * (rows + prior) / rows, 1e-4);
  EXPECT_NEAR(loss("experts.4.gate_proj") / whole, 0.25 * prior / rows, 1e-4);
}

TEST(WeighedInputs, ExpertsAtOnceAndThreadsChangeNoByte) {
  const ScratchLlama4 model;
  const Checkpoint checkpoint = model.open();
  for (const char* method : {"method: gptq\n", "method: awq\n"}) {
    SCOPED_TRACE(method);
    const std::string recipe = std::string(method) +
                               "scheme: w4a16_g8_sym\nignore: [lm_head]\n"
                               "calibration: {samples: 4, sequence_length: 24}\n";
    const ExpertJob all(recipe, checkpoint, 2, 0, kExpertTokens);  // chunk by chunk
    expect_same_bytes(all, ExpertJob(recipe, checkpoint, 2, 1, kExpertTokens));
    expect_same_bytes(all, ExpertJob(recipe, checkpoint, 3, 3, kExpertTokens));
  }
}

TEST(WeighedInputs, EveryMethodLosesLessOfAMixturesOutputThanRounding) {
  expect_less_lost_than_by_rounding(ScratchLlama4(), 0.6, 0.95);
}

}  // namespace
}  // namespace llmq
