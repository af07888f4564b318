// How many guesses are made, and what is copied.
#include "runtime/speculation.h"

#include <gtest/gtest.h>

#include "runtime/drafter.h"

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
  using Tokens = std::vector<std::int32_t>;
  EXPECT_EQ(copied({1, 2, 3, 4, 5, 1, 2}, 3), (Tokens{3, 4, 5}));
  EXPECT_EQ(copied({1, 2, 3, 9, 1, 2, 4, 8, 1, 2}, 2), (Tokens{4, 8})) << "the later one";
  EXPECT_EQ(copied({7, 1, 2, 3, 9, 1, 2, 4, 8, 7, 1, 2}, 2), (Tokens{3, 9})) << "the longer one";
  EXPECT_EQ(copied({5, 6, 5, 6, 5, 6}, 5), (Tokens{5, 6, 5, 6, 5})) << "a period goes on";
  EXPECT_EQ(copied({1, 2, 3, 4}, 3), Tokens{});
  EXPECT_EQ(copied({1, 1}, 3), Tokens{});
  EXPECT_EQ(copied({1}, 3), Tokens{});
}

}  // namespace
}  // namespace llmq::testing
