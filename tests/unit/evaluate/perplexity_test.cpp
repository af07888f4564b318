// Perplexity against its definition: logits of every row of a window, log-softmax in FP64, the mean over the
// scored positions.
//
// Both sides take the same FP32 logits (row invariance: the same bits however many rows are asked for at
// once) and go on in FP64; they differ in the order of a sum of V positive terms, (V + 4) u relative with u =
// 2^-53, hence as much absolutely in its logarithm; in a few roundings at the size of the logits (below 64: 8
// * 64 u); and in the mean of 48 losses below 16 (48 * 16 u). Each side once: kBound. A target or a row that
// is off by one changes the mean by tenths.
#include "evaluate/perplexity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/io.h"
#include "model/open_checkpoint.h"
#include "ranks/thread_ranks.h"
#include "unit/runtime/tiny_model.h"

namespace llmq {
namespace {

constexpr double kBound = 2 * ((2048 + 4) + 8 * 64 + 48 * 16) * 0x1p-53;

Engine open_model(int positions, Compute compute = Compute::kFloat32) {
  Engine::Options options;
  options.compute = compute;
  options.max_context = positions;
  options.kv_tokens = positions;
  const std::string model = std::string(LLMQ_SOURCE_DIR) + "/tests/models/tinystories-656k";
  return Engine::load(open_checkpoint(system_io(), model), make_cpu_backend(1), options);
}

// Any ids will do; these repeat no short pattern.
std::vector<std::int32_t> some_ids(int count, std::int64_t vocabulary) {
  std::vector<std::int32_t> ids;
  std::uint32_t state = 12345;
  for (int i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    ids.push_back(static_cast<std::int32_t>((state >> 8) % static_cast<std::uint32_t>(vocabulary)));
  }
  return ids;
}

// -log p of position p's token given those before it.
std::vector<double> losses_by_definition(Engine& engine, const std::vector<std::int32_t>& tokens) {
  KvSequence sequence(engine.cache());
  const Buffer hidden = engine.forward(sequence, tokens);
  const auto rows = static_cast<std::int64_t>(tokens.size());
  const TensorView states = hidden.view(DType::kF32, {rows, engine.spec().hidden_size});
  const auto vocabulary = static_cast<std::size_t>(engine.spec().vocab_size);
  std::vector<double> losses = {0};  // the first token is given
  std::vector<float> logits(vocabulary);
  for (std::int64_t row = 0; row + 1 < rows; ++row) {
    engine.backend().download(logits.data(), engine.logits(states.row_slice(row, 1)));
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    const auto next = static_cast<std::size_t>(tokens[static_cast<std::size_t>(row + 1)]);
    losses.push_back(std::log(sum) - static_cast<double>(logits[next]));
  }
  return losses;
}

TEST(Perplexity, IsItsDefinition) {
  Engine engine = open_model(48);
  for (const std::int64_t first_scored : {1, 2, 25, 47}) {
    const Window window{some_ids(48, engine.spec().vocab_size), first_scored};
    const std::vector<double> losses = losses_by_definition(engine, window.tokens);
    double sum = 0;
    for (std::size_t p = static_cast<std::size_t>(first_scored); p < losses.size(); ++p) sum += losses[p];
    const auto scored = 48 - first_scored;
    const PerplexityResult result = evaluate_perplexity(engine, nullptr, std::span(&window, 1));
    EXPECT_EQ(result.scored_tokens, scored);
    EXPECT_NEAR(result.mean_nll, sum / static_cast<double>(scored), kBound) << first_scored;
    EXPECT_EQ(result.ppl, std::exp(result.mean_nll));
  }
}

TEST(Perplexity, SpreadIsTheStandardErrorOfTheMean) {
  Engine engine = open_model(48);
  const Window window{some_ids(48, engine.spec().vocab_size), 1};
  std::vector<double> losses = losses_by_definition(engine, window.tokens);
  losses.erase(losses.begin());
  double mean = 0, squares = 0;
  for (const double loss : losses) mean += loss / static_cast<double>(losses.size());
  for (const double loss : losses) squares += (loss - mean) * (loss - mean);
  const auto n = static_cast<double>(losses.size());
  const PerplexityResult result = evaluate_perplexity(engine, nullptr, std::span(&window, 1));
  // The loop takes the variance from sums of squares: n losses below 16 lose n * 16^2 * u of a sum that is
  // about n times the variance, which is of order one here, so 256 u relative (a few times over: 2000 u), and
  // so does the error.
  const double expected = result.ppl * std::sqrt(squares / (n - 1) / n);
  EXPECT_NEAR(result.ppl_stderr, expected, 2000 * 0x1p-53 * expected);
}

TEST(Perplexity, AModelDoesNotDivergeFromItself) {
  Engine engine = open_model(48), twin = open_model(48);
  const Window window{some_ids(48, engine.spec().vocab_size), 1};
  const PerplexityResult result = evaluate_perplexity(engine, &twin, std::span(&window, 1));
  ASSERT_TRUE(result.against.has_value());
  EXPECT_EQ(result.against->kl_mean, 0);
  EXPECT_EQ(result.against->kl_max, 0);
  EXPECT_EQ(result.against->top1_agreement, 1);
  EXPECT_EQ(result.against->reference_ppl, result.ppl);
}

// log softmax in FP64 of every row that predicts a known token, one row of logits at a time.
std::vector<std::vector<double>> log_probabilities(Engine& engine, const std::vector<std::int32_t>& tokens) {
  KvSequence sequence(engine.cache());
  const Buffer hidden = engine.forward(sequence, tokens);
  const auto rows = static_cast<std::int64_t>(tokens.size());
  const TensorView states =
      hidden.view(activation_dtype(engine.options().compute), {rows, engine.spec().hidden_size});
  std::vector<float> logits(static_cast<std::size_t>(engine.spec().vocab_size));
  std::vector<std::vector<double>> all;
  for (std::int64_t row = 0; row + 1 < rows; ++row) {
    engine.backend().download(logits.data(), engine.logits(states.row_slice(row, 1)));
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    std::vector<double>& logs = all.emplace_back();
    for (const float logit : logits) logs.push_back(static_cast<double>(logit) - std::log(sum));
  }
  return all;
}

std::size_t largest(const std::vector<double>& values) {
  return static_cast<std::size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

// 300 positions: more than one tile of at most 256 rows. A row's KL is sum p (log p - log q): each logarithm
// errs by E = (V + 4 + 8 * 64) u, as above; p by 2 E relative, of differences below 64; the sum by V u of as
// much. Both sides:
constexpr double kKlBound = 2 * (130.0 * (2048 + 4 + 8 * 64) + 2048 * 64) * 0x1p-53;

TEST(Perplexity, DivergenceIsItsDefinitionInEveryTile) {
  constexpr std::int64_t kTokens = 300;
  Engine engine = open_model(kTokens, Compute::kBFloat16), original = open_model(kTokens);
  const Window window{some_ids(kTokens, engine.spec().vocab_size), 1};
  const auto q = log_probabilities(engine, window.tokens), p = log_probabilities(original, window.tokens);
  std::vector<double> kl;
  double agreements = 0, kl_sum = 0, loss = 0;
  for (std::size_t row = 0; row < p.size(); ++row) {
    kl.push_back(0);
    for (std::size_t v = 0; v < p[row].size(); ++v)
      kl.back() += std::exp(p[row][v]) * (p[row][v] - q[row][v]);
    kl_sum += kl.back();
    agreements += largest(p[row]) == largest(q[row]);
    loss -= p[row][static_cast<std::size_t>(window.tokens[row + 1])];
  }
  const PerplexityResult result = evaluate_perplexity(engine, &original, std::span(&window, 1));
  const auto n = static_cast<double>(kl.size());
  ASSERT_TRUE(result.against.has_value());
  const double mean = kl_sum / n;
  EXPECT_GT(mean, 1000 * kKlBound) << "the two must differ for this to say anything";
  EXPECT_LT(agreements, n);
  EXPECT_NEAR(result.against->kl_mean, mean, kKlBound);
  EXPECT_EQ(result.against->top1_agreement, agreements / n);
  EXPECT_NEAR(std::log(result.against->reference_ppl), loss / n, kKlBound);
  EXPECT_EQ(result.against->delta_ppl, result.ppl - result.against->reference_ppl);
  double squares = 0;
  for (const double x : kl) squares += (x - mean) * (x - mean);
  // Of sums of squares of n values: about n u of the largest square in relation to the variance, far below
  // 1e-6.
  EXPECT_NEAR(result.against->kl_stderr, std::sqrt(squares / (n - 1) / n),
              1e-6 * std::sqrt(squares / (n - 1) / n));
  std::sort(kl.begin(), kl.end());
  EXPECT_NEAR(result.against->kl_max, kl.back(), kKlBound);
  EXPECT_NEAR(result.against->kl_p99, kl[296], kKlBound) << "rank ceil(0.99 * 298) of 0 .. 298";
}

TEST(Perplexity, OfSeveralModelsIsThatOfEachAlone) {
  constexpr std::int64_t kTokens = 300;
  Engine rounded = open_model(kTokens, Compute::kBFloat16), twin = open_model(kTokens),
         original = open_model(kTokens);
  const std::vector<Window> windows{{some_ids(kTokens, twin.spec().vocab_size), 1},
                                    {some_ids(kTokens - 7, twin.spec().vocab_size), 20}};
  Engine* const both[] = {&rounded, &twin};
  for (Engine* against : {&original, static_cast<Engine*>(nullptr)}) {
    const std::vector<PerplexityResult> together = evaluate_perplexities(both, against, windows);
    ASSERT_EQ(together.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
      const PerplexityResult alone = evaluate_perplexity(*both[i], against, windows);
      EXPECT_EQ(together[i].ppl, alone.ppl);
      EXPECT_EQ(together[i].ppl_stderr, alone.ppl_stderr);
      EXPECT_EQ(together[i].scored_tokens, alone.scored_tokens);
      ASSERT_EQ(together[i].against.has_value(), against != nullptr);
      if (!against) continue;
      EXPECT_EQ(together[i].against->kl_mean, alone.against->kl_mean);
      EXPECT_EQ(together[i].against->kl_p99, alone.against->kl_p99);
      EXPECT_EQ(together[i].against->top1_agreement, alone.against->top1_agreement);
      EXPECT_EQ(together[i].against->reference_ppl, together[1].ppl) << "the twin is the original";
      EXPECT_EQ(together[i].against->reference_ppl_stderr, together[1].ppl_stderr);
    }
  }
}

// Every digit of one process, from ranks that have two, one or three windows of unequal lengths.
TEST(SpreadPerplexity, RanksFindWhatOneProcessFinds) {
  constexpr std::int64_t kTokens = 40;
  std::vector<Window> windows;
  for (int i = 0; i < 5; ++i)
    windows.push_back({some_ids(static_cast<int>(kTokens) - 5 * i, 2048), i % 2 == 0 ? 1 : 9});
  const auto measure = [&](bool compared, Ranks* ranks) {
    Engine rounded = open_model(kTokens, Compute::kBFloat16), twin = open_model(kTokens),
           original = open_model(kTokens);
    Engine* const both[] = {&rounded, &twin};
    std::int64_t heard = 0;
    auto results = evaluate_perplexities(
        both, compared ? &original : nullptr, windows, [&](std::int64_t done, double) { heard = done; },
        ranks);
    const std::int64_t mine = ranks ? (5 - ranks->rank() + ranks->size() - 1) / ranks->size() : 5;
    EXPECT_EQ(heard, mine) << "each rank has its share and no more";
    return results;
  };
  for (const bool compared : {false, true}) {
    const std::vector<PerplexityResult> alone = measure(compared, nullptr);
    for (const int size : {1, 2, 3, 5})
      run_as_ranks(size, [&](Ranks& ranks) {
        const std::vector<PerplexityResult> shared = measure(compared, &ranks);
        ASSERT_EQ(shared.size(), ranks.rank() == 0 ? 2u : 0u);
        for (std::size_t i = 0; i < shared.size(); ++i) {
          EXPECT_EQ(shared[i].ppl, alone[i].ppl) << size;
          EXPECT_EQ(shared[i].mean_nll, alone[i].mean_nll);
          EXPECT_EQ(shared[i].ppl_stderr, alone[i].ppl_stderr);
          EXPECT_EQ(shared[i].windows, 5);
          EXPECT_EQ(shared[i].scored_tokens, alone[i].scored_tokens);
          EXPECT_EQ(shared[i].evaluated_tokens, alone[i].evaluated_tokens);
          ASSERT_EQ(shared[i].against.has_value(), compared);
          if (!compared) continue;
          EXPECT_EQ(shared[i].against->kl_mean, alone[i].against->kl_mean);
          EXPECT_EQ(shared[i].against->kl_stderr, alone[i].against->kl_stderr);
          EXPECT_EQ(shared[i].against->kl_p99, alone[i].against->kl_p99);
          EXPECT_EQ(shared[i].against->kl_max, alone[i].against->kl_max);
          EXPECT_EQ(shared[i].against->top1_agreement, alone[i].against->top1_agreement);
          EXPECT_EQ(shared[i].against->reference_ppl, alone[i].against->reference_ppl);
        }
      });
  }
}

// What the beginning should have refused is no figure: rank 1 has another share than rank 0 takes it to have.
TEST(SpreadPerplexity, AnotherShareIsNoFigure) {
  constexpr std::int64_t kTokens = 12;
  const auto error_where_rank_1_has = [&](std::size_t count) {
    try {
      run_as_ranks(2, [&](Ranks& ranks) {
        Engine engine = open_model(kTokens);
        Engine* const one = &engine;
        const std::vector<Window> windows(ranks.rank() == 1 ? count : 4,
                                          {some_ids(static_cast<int>(kTokens), 2048), 1});
        evaluate_perplexities(std::span(&one, 1), nullptr, windows, {}, &ranks);
      });
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(error_where_rank_1_has(4), "no error");
  EXPECT_EQ(error_where_rank_1_has(6), "rank 1 scored too many tokens");
  EXPECT_EQ(error_where_rank_1_has(3), "rank 1 scored too few tokens");
}

TEST(Perplexity, AnotherVocabularyIsRefused) {
  Engine engine = open_model(48);
  const testing::TinyModel tiny;
  Engine::Options options;
  options.compute = Compute::kFloat32;
  options.max_context = options.kv_tokens = 48;
  Engine other = tiny.load(make_cpu_backend(1), options);
  const Window window{some_ids(48, 61), 1};
  try {
    evaluate_perplexity(engine, &other, std::span(&window, 1));
    ADD_FAILURE() << "models of 2048 and 61 tokens were compared";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kBadInput);
    EXPECT_NE(std::string(e.what()).find("2048 and 61"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace llmq
