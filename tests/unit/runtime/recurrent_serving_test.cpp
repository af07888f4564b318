// Serving of models with recurrent states: an answer is the one a request gets alone, whatever runs beside
// it, whatever is pushed out, cut or forked; what would go on from another state is refused or switched off.
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "runtime/generate.h"
#include "runtime/serving_engine.h"
#include "small_engine.h"

namespace llmq::testing {
namespace {

Engine open_hybrid(const std::string& name, std::int64_t kv_tokens) {
  Engine::Options options;
  options.max_context = 64;
  options.kv_tokens = kv_tokens;
  options.block_size = 4;
  return Engine::load(open_checkpoint(system_io(), LLMQ_SOURCE_DIR "/tests/golden/models/" + name + "/model"),
                      make_cpu_backend(2), options);
}

// Some with the same beginning, some of several answers, greedy or not.
std::vector<GenerationRequest> hybrid_requests() {
  std::mt19937 random(5);
  std::vector<GenerationRequest> requests;
  for (std::uint64_t id = 1; id <= 9; ++id) {
    GenerationRequest request;
    request.id = id;
    for (std::int32_t i = 0; i < 12 && id % 2 == 0; ++i) request.prompt.push_back(3 + i * 7 % 90);
    const auto length = request.prompt.size() + 1 + random() % 9;
    while (request.prompt.size() < length)
      request.prompt.push_back(static_cast<std::int32_t>(3 + random() % 90));
    request.max_tokens = static_cast<std::int64_t>(4 + random() % 12);
    request.n = id % 3 == 0 ? 2 : 1;
    request.ignore_eos = true;
    if (id % 4 == 1) request.sampling.temperature = 0.8f, request.sampling.seed = id;
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<std::int32_t> alone_of(Engine& engine, const GenerationRequest& request, int index) {
  GenerateOptions options;
  options.max_tokens = request.max_tokens;
  options.sampling = request.sampling;
  options.sampling.seed = answer_seed(request.sampling.seed, index);
  options.ignore_eos = true;
  return generate_tokens(engine, request.prompt, options, [](std::int32_t) { return true; }).tokens;
}

struct Served {
  Answers answers;
  ServingStatistics statistics;
};

Served serve(Engine& engine, const std::vector<GenerationRequest>& requests, const SchedulerLimits& limits,
             Drafter* drafter) {
  ServingOptions options;
  options.limits = limits;
  options.limits.max_model_len = 60;
  options.num_draft_tokens = drafter == nullptr ? 0 : 3;
  ServingEngine serving(engine, nullptr, options, drafter);
  Served served;
  Ends ends;
  for (const GenerationRequest& request : requests) {
    EXPECT_FALSE(serving.submit(request));
    collect(serving.step(), served.answers, ends);
  }
  while (!serving.idle()) collect(serving.step(), served.answers, ends);
  served.statistics = serving.statistics();
  return served;
}

class RecurrentServing : public ::testing::TestWithParam<const char*> {};

TEST_P(RecurrentServing, AnAnswerIsTheOneARequestGetsAlone) {
  Engine alone = open_hybrid(GetParam(), 64);
  const std::vector<GenerationRequest> requests = hybrid_requests();
  std::int64_t preempted = 0;
  // Much memory and long steps; few tokens in a step, so that prompts are cut; few pages, so that sequences
  // are pushed out.
  for (const auto& [tokens, most] : {std::pair{400, 64}, std::pair{400, 5}, std::pair{64, 7}}) {
    Engine engine = open_hybrid(GetParam(), tokens);
    SchedulerLimits limits;
    limits.max_num_seqs = 4;
    limits.max_num_batched_tokens = most;
    const Served served = serve(engine, requests, limits, nullptr);
    preempted += served.statistics.preemptions;
    EXPECT_EQ(served.statistics.prefix_hits, 0);
    for (const GenerationRequest& request : requests)
      for (int index = 0; index < request.n; ++index)
        EXPECT_EQ(served.answers.at({request.id, index}), alone_of(alone, request, index))
            << "request " << request.id << ", answer " << index << ", " << tokens << " positions";
  }
  EXPECT_GT(preempted, 0);
}

TEST_P(RecurrentServing, NothingIsGuessedOrKeptOnTheHost) {
  Engine alone = open_hybrid(GetParam(), 64), engine = open_hybrid(GetParam(), 64);
  const auto drafter = make_ngram_drafter();
  engine.cache().give_swap_space(16);
  SchedulerLimits limits;
  limits.max_num_seqs = 4;
  limits.max_num_batched_tokens = 16;
  limits.swap_pages = 16;
  const std::vector<GenerationRequest> requests = hybrid_requests();
  const Served served = serve(engine, requests, limits, drafter.get());
  EXPECT_EQ(served.statistics.drafted, 0);
  EXPECT_EQ(served.statistics.restored_tokens, 0);
  EXPECT_GT(served.statistics.preemptions, 0);
  for (const GenerationRequest& request : requests)
    EXPECT_EQ(served.answers.at({request.id, 0}), alone_of(alone, request, 0)) << request.id;
}

TEST_P(RecurrentServing, AStateIsGoodForItsNextPositionAlone) {
  Engine engine = open_hybrid(GetParam(), 64);
  KvSequence sequence(engine.cache());
  const std::vector<std::int32_t> prompt = {5, 6, 7, 8, 9}, more = {10, 11};
  engine.forward(sequence, prompt);
  sequence.truncate(3);
  EXPECT_THROW(engine.forward(sequence, more), Error);
  sequence.truncate(0);  // from there on it is a new one
  EXPECT_NO_THROW(engine.forward(sequence, more));
}

TEST_P(RecurrentServing, ItDraftsForNobody) {
  EXPECT_THROW(make_model_drafter(open_hybrid(GetParam(), 64), 97, 16), Error);
}

INSTANTIATE_TEST_SUITE_P(Families, RecurrentServing,
                         ::testing::Values("qwen3_5_text", "qwen3_next", "qwen3_5_moe"));

}  // namespace
}  // namespace llmq::testing
