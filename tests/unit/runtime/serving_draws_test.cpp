// What is drawn and what is told of it: distributions, log probabilities and scored prompts are the model's
// own, whoever guesses and whatever else runs.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "base/error.h"
#include "runtime/serving_engine.h"
#include "small_engine.h"
#include "tiny_model.h"

namespace llmq::testing {
namespace {

// A token of every sequence of the vocabulary, drawn with other numbers: guesses that are mostly wrong, and
// right by chance.
class RandomGuesses : public Drafter {
 public:
  std::string name() const override { return "random"; }
  double bytes_per_guess() const override { return 0; }
  void forget(std::uint64_t) override {}
  void propose(std::span<DraftJob> jobs) override {
    for (DraftJob& job : jobs)
      for (std::int64_t i = 0; i < job.most; ++i) job.guesses.push_back(likely_[random_() % likely_.size()]);
  }
  explicit RandomGuesses(std::vector<std::int32_t> likely) : likely_(std::move(likely)) {}

 private:
  std::vector<std::int32_t> likely_;
  std::mt19937 random_{5};
};

std::vector<double> next_shares(Engine& engine, std::span<const std::int32_t> tokens, double temperature) {
  KvSequence sequence(engine.cache());
  const Buffer normed = engine.forward(sequence, tokens);
  const std::int32_t last[] = {static_cast<std::int32_t>(tokens.size() - 1)};
  std::vector<double> shares;
  double sum = 0;
  for (const float logit : engine.host_logits(normed, static_cast<std::int64_t>(tokens.size()), last)) {
    shares.push_back(std::exp(static_cast<double>(logit) / temperature));
    sum += shares.back();
  }
  for (double& share : shares) share /= sum;
  return shares;
}

// Of a variable with `degrees` of freedom: mean d, variance 2d. Six deviations are far in the tail (below
// 1e-5 for 60 degrees), and the draws are fixed. Cells of less than five expected are taken together.
void expect_chi_square(const std::vector<double>& shares, const std::vector<int>& seen, int draws) {
  double statistic = 0, degrees = -1, rare_expected = 0, rare_seen = 0;
  const auto cell = [&](double expected, double found) {
    statistic += (found - expected) * (found - expected) / expected;
    ++degrees;
  };
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] * draws >= 5) {
      cell(shares[i] * draws, seen[i]);
    } else {
      rare_expected += shares[i] * draws;
      rare_seen += seen[i];
    }
  }
  if (rare_expected > 0) cell(rare_expected, rare_seen);
  EXPECT_GT(degrees, 10);
  EXPECT_LT(statistic, degrees + 6 * std::sqrt(2 * degrees));
}

// The second and the third token of answers with 6000 seeds, whose exact distribution the model tells; a
// guess was made for both.
TEST(ServingEngine, GuessesDoNotChangeADistribution) {
  const TinyModel model;
  Engine::Options options;
  options.compute = Compute::kFloat32;
  options.max_context = 64;
  options.kv_tokens = 2048;
  Engine engine = model.load(make_cpu_backend(2), options);
  const std::vector<std::int32_t> prompt = {1, 17, 42};
  constexpr double kTemperature = 1.5;
  constexpr int kDraws = 6000;

  std::vector<double> first = next_shares(engine, prompt, kTemperature), second(61);
  std::vector<std::int32_t> with = prompt, likely;
  with.push_back(0);
  for (std::int32_t token = 0; token < 61; ++token) {
    with.back() = token;
    const std::vector<double> after = next_shares(engine, with, kTemperature);
    for (std::size_t i = 0; i < 61; ++i) second[i] += first[static_cast<std::size_t>(token)] * after[i];
  }
  for (std::int32_t token = 0; token < 61; ++token)
    if (second[static_cast<std::size_t>(token)] > 1.0 / 61) likely.push_back(token);

  RandomGuesses drafter(likely);
  ServingEngine serving(engine, nullptr, {{32, 256, 64, kDraws}, 2}, &drafter);
  for (int i = 0; i < kDraws; ++i) {
    GenerationRequest request;
    request.id = static_cast<std::uint64_t>(i);
    request.prompt = prompt;
    request.max_tokens = 4;
    request.ignore_eos = true;
    request.sampling = {.temperature = kTemperature, .seed = static_cast<std::uint64_t>(i)};
    ASSERT_FALSE(serving.submit(request).has_value());
  }
  Answers answers;
  Ends ends;
  while (!serving.idle()) collect(serving.step(), answers, ends);
  std::vector<int> seen_first(61), seen_second(61);
  for (const auto& entry : answers) {
    ASSERT_EQ(entry.second.size(), 4u);
    ++seen_first[static_cast<std::size_t>(entry.second[0])];
    ++seen_second[static_cast<std::size_t>(entry.second[1])];
  }
  expect_chi_square(first, seen_first, kDraws);
  expect_chi_square(second, seen_second, kDraws);
  EXPECT_GT(serving.statistics().accepted, kDraws / 100) << "guesses are right now and then";
  EXPECT_GT(serving.statistics().drafted, serving.statistics().accepted);
}

TEST(ServingEngine, LogprobsAreTheModelsOwn) {
  const TinyModel model;
  Engine::Options options;
  options.max_context = options.kv_tokens = 64;
  Engine engine = model.load(make_cpu_backend(1), options);
  ServingEngine serving(engine, nullptr, {{4, 64, 64, 4}, 0});
  GenerationRequest request;
  request.prompt = {1, 17, 42};
  request.max_tokens = 5;
  request.ignore_eos = true;
  request.logprobs = 3;
  // what is drawn is not what is likely
  request.sampling = {.temperature = 1, .presence_penalty = 2, .logit_bias = {{7, 60.0f}}};
  ASSERT_FALSE(serving.submit(request).has_value());
  std::vector<std::int32_t> tokens = request.prompt;
  while (!serving.idle())
    for (const GenerationEvent& event : std::vector<GenerationEvent>(serving.step())) {
      ASSERT_EQ(event.tokens.size(), 1u);
      ASSERT_EQ(event.logprobs.size(), 1u);
      EXPECT_EQ(event.tokens[0], 7) << "the bias decides";
      const std::vector<double> shares = next_shares(engine, tokens, 1);
      EXPECT_NEAR(std::exp(event.logprobs[0].chosen.logprob), shares[7], 1e-12);
      ASSERT_EQ(event.logprobs[0].likeliest.size(), 3u);
      for (const TokenLogprob& one : event.logprobs[0].likeliest) {
        std::size_t likelier = 0;
        for (const double share : shares) likelier += share > shares[static_cast<std::size_t>(one.token)];
        EXPECT_LT(likelier, 3u);
        EXPECT_NEAR(std::exp(one.logprob), shares[static_cast<std::size_t>(one.token)], 1e-12);
      }
      tokens.push_back(7);
    }
  EXPECT_EQ(tokens.size(), 8u);
}

// As vLLM tells it: who scores a prompt counts on one token behind it, and an end is one.
TEST(ServingEngine, AnEndTokenIsToldLikeAnyOther) {
  const TinyModel model;  // its end token is 2
  Engine::Options options;
  options.max_context = options.kv_tokens = 64;
  Engine engine = model.load(make_cpu_backend(1), options);
  GenerationRequest request;
  request.prompt = {1, 17, 42};
  request.max_tokens = 3;
  request.n = 2;
  request.logprobs = request.prompt_logprobs = 1;
  for (const std::int32_t end : {2, 7}) {
    request.sampling.logit_bias = {{end, 100.0f}};
    request.ignore_eos = end == 7;
    if (end == 7) request.stop_tokens = {7};
    ServingEngine serving(engine, nullptr, {{4, 64, 64, 4}, 0});
    ASSERT_FALSE(serving.submit(request).has_value());
    std::size_t answers = 0;
    while (!serving.idle())
      for (const GenerationEvent& event : std::vector<GenerationEvent>(serving.step())) {
        ++answers;
        EXPECT_EQ(event.finish, FinishReason::kStop);
        EXPECT_EQ(event.tokens, std::vector<std::int32_t>{end});
        EXPECT_EQ(event.prompt_logprobs.size(), 2u);
        ASSERT_EQ(event.logprobs.size(), 1u);
        EXPECT_EQ(event.logprobs[0].chosen.token, end);
        const std::vector<double> shares = next_shares(engine, request.prompt, 1);
        EXPECT_NEAR(std::exp(event.logprobs[0].chosen.logprob), shares[static_cast<std::size_t>(end)], 1e-12);
      }
    EXPECT_EQ(answers, 2u);
    EXPECT_EQ(serving.statistics().generated_tokens, 2);
  }
}

// What eval-ppl computes of the same tokens.
std::vector<double> scored_alone(Engine& engine, const std::vector<std::int32_t>& tokens) {
  KvSequence sequence(engine.cache());
  const Buffer normed = engine.forward(sequence, tokens);
  const auto rows = static_cast<std::int64_t>(tokens.size()) - 1;
  std::vector<RowScore> scores(tokens.size() - 1);
  const TensorView all =
      normed.view(activation_dtype(engine.options().compute), {rows + 1, engine.spec().hidden_size});
  engine.backend().score_rows(engine.logits(all.row_slice(0, rows)), std::span(tokens).subspan(1), scores);
  std::vector<double> result;
  for (const RowScore& score : scores) result.push_back(score.log_prob);
  return result;
}

// In the background, in chunks, beside others, pushed out in between, with a prefix that somebody else left:
// the same digits.
TEST(ServingEngine, APromptIsScoredAsAnEvaluationDoes) {
  Engine engine = open("tinystories-656k", 192, true), lonely = open("tinystories-656k", 256, false);
  ServingEngine serving(engine, nullptr, {{4, 24, 256, 64}});
  GenerationRequest scored;
  scored.id = 1;
  for (int i = 0; i < 100; ++i) scored.prompt.push_back(3 + i * 37 % 2000);
  scored.max_tokens = 1;
  GenerationRequest beside = scored;
  beside.id = 2;
  EXPECT_FALSE(serving.submit(beside).has_value());
  while (!serving.idle()) serving.step();
  scored.prompt_logprobs = 3;
  scored.background = true;
  scored.priority = 100;
  EXPECT_FALSE(serving.submit(scored).has_value());
  EXPECT_TRUE((serving.step(), serving.statistics().running == 0)) << "it is not counted";
  for (std::uint64_t id = 3; id < 6; ++id) {
    beside.id = id;
    for (std::int32_t& token : beside.prompt) token = token % 2000 + 1;
    beside.max_tokens = 20;
    beside.ignore_eos = true;
    EXPECT_FALSE(serving.submit(beside).has_value());
  }
  std::vector<TokenLogprobs> found;
  while (!serving.idle())
    for (const GenerationEvent& event : serving.step())
      if (event.id == 1) {
        EXPECT_TRUE(found.empty());
        found = event.prompt_logprobs;
      }
  const std::vector<double> expected = scored_alone(lonely, scored.prompt);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].chosen.token, scored.prompt[i + 1]);
    EXPECT_EQ(found[i].chosen.logprob, expected[i]) << i;
    ASSERT_EQ(found[i].likeliest.size(), 3u);
    EXPECT_GE(found[i].likeliest[0].logprob, found[i].chosen.logprob);
    EXPECT_GE(found[i].likeliest[0].logprob, found[i].likeliest[1].logprob);
  }
  const ServingStatistics statistics = serving.statistics();
  EXPECT_GT(statistics.preemptions, 0);
  EXPECT_EQ(statistics.prompt_tokens, 400);
  EXPECT_EQ(statistics.generated_tokens, 61);
  EXPECT_EQ(statistics.finished_length, 4);
  EXPECT_EQ(engine.cache().blocks().free(), engine.cache().blocks().total());
}

}  // namespace
}  // namespace llmq::testing
