// Serving of a model whose blocks see chunks (Llama 4): pages of chunks that are over are given back, a
// prefix is found by its last chunk, guesses are cut back over the border of a chunk, and each answer is the
// one that a request gets alone.
#include <gtest/gtest.h>

#include "golden_serving.h"

namespace llmq::testing {
namespace {

class ChunkedServing : public ::testing::TestWithParam<const char*> {};

TEST_P(ChunkedServing, AnAnswerIsTheOneARequestGetsAlone) {
  Engine alone = open_golden(GetParam(), 256, 256);
  const std::vector<GenerationRequest> requests = mixed_requests(150);
  std::int64_t hits = 0, accepted = 0, preempted = 0;
  for (const auto& [tokens, most] : {std::pair{1200, 64}, std::pair{260, 7}})
    for (const bool guessing : {false, true}) {
      Engine engine = open_golden(GetParam(), tokens, 256);
      const std::unique_ptr<Drafter> drafter = make_ngram_drafter();
      SchedulerLimits limits;
      limits.max_num_seqs = 4;
      limits.max_num_batched_tokens = most;
      const Served served = serve(engine, requests, limits, guessing ? drafter.get() : nullptr, 200);
      hits += served.statistics.prefix_hits;
      accepted += served.statistics.accepted;
      preempted += served.statistics.preemptions;
      EXPECT_EQ(served.statistics.kv_blocks_used, 0);
      for (const GenerationRequest& request : requests)
        for (int index = 0; index < request.n; ++index)
          EXPECT_EQ(served.answers.at({request.id, index}), alone_of(alone, request, index))
              << "request " << request.id << ", answer " << index << ", " << tokens << " positions";
    }
  EXPECT_GT(hits, 0);
  EXPECT_GT(preempted, 0);
  EXPECT_GT(accepted, 0);
}

// Of 400 positions a layer of chunks keeps its last chunk, what the kernels round it to, and a step: of
// chunks of 11, 10 + 63 + 3 + 7, or 21 blocks of 4; the block that sees all keeps 100.
TEST(ChunkedPages, AreGivenBackChunkByChunk) {
  Engine engine = open_golden("llama4_text-step", 4 * 250, 512);
  ServingEngine serving(engine, nullptr, {{4, 7, 512, 64}, 0});
  GenerationRequest request;
  request.prompt.assign(200, 7);
  request.max_tokens = 200;
  request.ignore_eos = true;
  ASSERT_FALSE(serving.submit(request));
  std::int64_t most = 0;
  for (; !serving.idle(); most = std::max(most, serving.statistics().kv_blocks_used)) serving.step();
  EXPECT_GT(most, 100);
  EXPECT_LE(most, 100 + 5 * 21);
}

INSTANTIATE_TEST_SUITE_P(Families, ChunkedServing, ::testing::Values("llama4_text", "llama4_text-step"));

}  // namespace
}  // namespace llmq::testing
