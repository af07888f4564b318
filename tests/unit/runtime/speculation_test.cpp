// How many guesses are made, and what is copied.
#include "runtime/speculation.h"
#include "model/open_checkpoint.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "runtime/drafter.h"
#include "runtime/generate.h"
#include "small_engine.h"
#include "tokenizer/tokenizer.h"

namespace llmq::testing {
namespace {

// Rounds of which every guess is right with the pattern of a fixed share.
std::int64_t guesses_after(Speculation& speculation, Speculation::Sequence& sequence, int rounds,
                           int right_of_ten) {
  int turn = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::int64_t k = speculation.guesses(sequence, 1);
    std::int64_t accepted = 0;
    while (accepted < k && turn++ % 10 < right_of_ten) ++accepted;
    if (k > 0) speculation.record(sequence, k, accepted);
  }
  return speculation.usual_guesses(1);
}

TEST(Speculation, GoodGuessesAreManyAndBadOnesNone) {
  Speculation good(0, 0.2, 16), bad(0, 0.5, 16), free(0, 0, 16);
  Speculation::Sequence one, two, three;
  EXPECT_GT(guesses_after(good, one, 300, 9), 3);
  EXPECT_EQ(guesses_after(bad, two, 300, 2), 0);
  EXPECT_GT(guesses_after(free, three, 300, 2), 0) << "what costs nothing but rows pays early";
  EXPECT_EQ(Speculation(4, 0.5, 16).usual_guesses(64), 4);
}

TEST(Speculation, AFullBatchLeavesNoRoomForGuesses) {
  const Speculation speculation(0, 0.1, 16);
  EXPECT_GT(speculation.usual_guesses(1), speculation.usual_guesses(16));
  EXPECT_LE(speculation.usual_guesses(256), speculation.usual_guesses(16));
}

// The fewer bytes a weight has, the sooner another row costs time of its own.
TEST(Speculation, PackedWeightsLeaveFewerRowsForGuesses) {
  EXPECT_DOUBLE_EQ(Speculation::free_rows_of(2e9, 1e9), 16);
  EXPECT_DOUBLE_EQ(Speculation::free_rows_of(4e9, 1e9), 16) << "FP32 multiplies at half the speed, too";
  EXPECT_DOUBLE_EQ(Speculation::free_rows_of(0.5e9, 1e9), 4);
  const Speculation dense(0, 0, 16), packed(0, 0, 4);
  EXPECT_GT(dense.usual_guesses(2), packed.usual_guesses(2));
}

// A sequence that gave up costs little: 2 guesses in 32, 64, ... 1024 steps.
TEST(Speculation, ItTriesAgainSeldom) {
  Speculation speculation(0, 0.5, 16);
  Speculation::Sequence sequence;
  guesses_after(speculation, sequence, 40, 0);
  int tried = 0;
  for (int step = 0; step < 4000; ++step)
    if (const std::int64_t k = speculation.guesses(sequence, 1); k > 0) {
      ++tried;
      EXPECT_EQ(k, 2);
      speculation.record(sequence, k, 0);
    }
  EXPECT_GE(tried, 4);
  EXPECT_LE(tried, 10);
}

std::vector<std::int32_t> copied(const std::vector<std::int32_t>& tokens, std::int64_t most) {
  DraftJob job;
  job.tokens = tokens;
  job.most = most;
  make_ngram_drafter()->propose(std::span(&job, 1));
  return job.guesses;
}

TEST(NgramDrafter, CopiesWhatFollowedTheLongestLatestMatch) {
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ(copied({1, 2, 3, 4, 5, 1, 2}, 3), (Ids{3, 4, 5}));
  EXPECT_EQ(copied({1, 2, 3, 9, 1, 2, 4, 8, 1, 2}, 2), (Ids{4, 8})) << "the later one";
  EXPECT_EQ(copied({7, 1, 2, 3, 9, 1, 2, 4, 8, 7, 1, 2}, 2), (Ids{3, 9})) << "the longer one";
  EXPECT_EQ(copied({5, 6, 5, 6, 5, 6}, 5), (Ids{5, 6, 5, 6, 5})) << "a period goes on";
  EXPECT_EQ(copied({1, 2, 3, 4}, 3), Ids{});
  EXPECT_EQ(copied({1, 1}, 3), Ids{});
  EXPECT_EQ(copied({1}, 3), Ids{});
}

// Guesses of K=4, greedy, 96 tokens after each of 32 prompts: how many are right is what Transformers counts
// (tests/interop/make_acceptance_golden.py).
TEST(Speculation, AcceptanceIsThatOfAnExactSimulation) {
  const std::string file = LLMQ_SOURCE_DIR "/tests/unit/runtime/acceptance_tinystories.json";
  const Json golden = Json::parse(read_text(system_io(), file), file);
  const auto load = [&](const std::string& name) {
    Engine::Options options;
    options.compute = Compute::kFloat32;
    options.max_context = options.kv_tokens = 256;
    return Engine::load(open_checkpoint(system_io(), kModels + name), make_cpu_backend(1), options);
  };
  Engine target = load("tinystories-656k");
  const Tokenizer tokenizer = Tokenizer::open(system_io(), kModels + "tinystories-656k");
  const std::unique_ptr<Drafter> drafter = make_model_drafter(load("tinystories-draft"), 2048, 512);
  std::int64_t rounds = 0, drafted = 0, accepted = 0;
  for (const Json& prompt : golden.at("prompts").items()) {
    GenerateOptions options;
    options.max_tokens = options.min_tokens = 96;
    options.drafter = drafter.get();
    options.num_draft_tokens = 4;
    const Generated got = generate_tokens(target, tokenizer.encode(prompt.as_string()), options,
                                          [](std::int32_t) { return true; });
    EXPECT_EQ(got.tokens.size(), 96u);
    rounds += got.draft_rounds, drafted += got.drafted, accepted += got.accepted;
  }
  EXPECT_EQ(rounds, golden.at("rounds").as_integer());
  EXPECT_EQ(drafted, 4 * rounds);
  EXPECT_EQ(accepted, golden.at("accepted").as_integer());
}

TEST(Speculation, AVocabularyThatDiffersIsNamed) {
  const auto tokenizer = [](const std::string& vocabulary) {
    return Tokenizer::parse(
        Json::parse(
            R"({"added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
      "model": {"type": "BPE", "merges": [], "vocab": )" +
                vocabulary + "}}",
            "tokenizer"),
        "tokenizer");
  };
  const Tokenizer model = tokenizer(R"({"a": 0, "b": 1, "c": 2})");
  EXPECT_NO_THROW(check_same_vocabulary(model, tokenizer(R"({"a": 0, "b": 1, "c": 2})"), "draft"));
  const auto words = [&](const std::string& vocabulary) -> std::string {
    try {
      check_same_vocabulary(model, tokenizer(vocabulary), "draft");
    } catch (const Error& error) {
      return error.detail().message;
    }
    return "taken";
  };
  EXPECT_EQ(words(R"({"a": 0, "x": 1, "c": 2})"),
            "the vocabularies differ: token 1 is 'b' in the model and 'x' in the draft");
  EXPECT_EQ(words(R"({"a": 0, "b": 1})"),
            "the vocabularies differ: token 2 is 'c' in the model and nothing in the draft");
  EXPECT_EQ(words(R"({"a": 0, "b": 1, "c": 2, "d": 3})"),
            "the vocabularies differ: token 3 is nothing in the model and 'd' in the draft");
}

}  // namespace
}  // namespace llmq::testing
