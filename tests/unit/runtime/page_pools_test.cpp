// Serving of a model whose full layers have wider heads than those that look back through a window (Gemma 4):
// pages of two sizes come from two pools, and an answer is the one a request gets alone.
#include <gtest/gtest.h>

#include <random>

#include "runtime/generate.h"
#include "runtime/serving_engine.h"
#include "small_engine.h"

namespace llmq::testing {
namespace {

constexpr std::int64_t kLongest = 240;

Engine open_two_sizes(const std::string& name, std::int64_t tokens, std::int64_t window_tokens,
                      bool prefix_caching) {
  Engine::Options options;
  options.max_context = kLongest;
  options.kv_tokens = tokens;
  options.kv_window_tokens = window_tokens;
  options.block_size = 8;
  options.prefix_caching = prefix_caching;
  return Engine::load(open_checkpoint(system_io(), LLMQ_SOURCE_DIR "/tests/golden/models/" + name + "/model"),
                      make_cpu_backend(2), options);
}

std::vector<GenerationRequest> long_requests() {
  std::mt19937 random(11);
  std::vector<GenerationRequest> requests;
  for (std::uint64_t id = 1; id <= 8; ++id) {
    GenerationRequest request;
    request.id = id;
    for (std::int32_t i = 0; i < 110 && id % 2 == 0; ++i) request.prompt.push_back(3 + i * 7 % 90);
    for (auto more = 3 + random() % 60; more > 0; --more)
      request.prompt.push_back(static_cast<std::int32_t>(3 + random() % 90));
    request.max_tokens = static_cast<std::int64_t>(10 + random() % 40);
    request.n = id % 3 == 0 ? 2 : 1;
    request.ignore_eos = true;
    requests.push_back(std::move(request));
  }
  return requests;
}

class PagePools : public ::testing::TestWithParam<const char*> {};

TEST_P(PagePools, AnAnswerIsTheOneARequestGetsAlone) {
  Engine alone = open_two_sizes(GetParam(), kLongest, 0, false);
  const std::vector<GenerationRequest> requests = long_requests();
  ServingStatistics sum;
  // Much memory; little of it in the pool that the window passes; little in the other one, with host memory.
  for (const auto& [tokens, window, swap] :
       {std::tuple{2000, 0, 0}, std::tuple{2000, 200, 0}, std::tuple{256, 400, 60}}) {
    Engine engine = open_two_sizes(GetParam(), tokens, window, true);
    EXPECT_EQ(engine.cache().blocks().pools(), 2u);
    ServingOptions options;
    options.limits.max_num_seqs = 4;
    options.limits.max_num_batched_tokens = 40;
    options.limits.max_model_len = kLongest;
    options.limits.swap_pages = swap;
    if (swap > 0) engine.cache().give_swap_space(swap);
    ServingEngine serving(engine, nullptr, options);
    Answers answers;
    Ends ends;
    for (const GenerationRequest& request : requests) EXPECT_FALSE(serving.submit(request));
    while (!serving.idle()) collect(serving.step(), answers, ends);
    const ServingStatistics& now = serving.statistics();
    sum.preemptions += now.preemptions, sum.prefix_hits += now.prefix_hits;
    EXPECT_EQ(now.restored_tokens > 0, swap > 0);
    EXPECT_EQ(engine.cache().blocks().free(), engine.cache().blocks().total());
    for (const GenerationRequest& request : requests)
      for (int index = 0; index < request.n; ++index) {
        GenerateOptions one;
        one.max_tokens = request.max_tokens;
        one.sampling.seed = answer_seed(request.sampling.seed, index);
        one.ignore_eos = true;
        EXPECT_EQ(answers.at({request.id, index}),
                  generate_tokens(alone, request.prompt, one, [](std::int32_t) { return true; }).tokens)
            << "request " << request.id << ", " << tokens << " and " << window << " positions";
      }
  }
  EXPECT_GT(sum.preemptions, 0);
  EXPECT_GT(sum.prefix_hits, 0);
}

// One long sequence in a cache whose second pool holds the window, a tile and a step, and no more.
TEST_P(PagePools, AWindowBoundsItsPool) {
  const std::vector<std::int32_t> prompt(200, 9);
  GenerateOptions options;
  options.max_tokens = 30;
  options.prefill_chunk = 16;
  options.ignore_eos = true;
  const auto ignore = [](std::int32_t) { return true; };
  Engine whole = open_two_sizes(GetParam(), kLongest, 0, false),
         bounded = open_two_sizes(GetParam(), kLongest, 104, false);
  EXPECT_LT(bounded.cache().bytes(), whole.cache().bytes());
  EXPECT_EQ(generate_tokens(bounded, prompt, options, ignore).tokens,
            generate_tokens(whole, prompt, options, ignore).tokens);
}

INSTANTIATE_TEST_SUITE_P(Families, PagePools,
                         ::testing::Values("gemma4_text", "gemma4_text-shared", "gemma4_text-moe"));

}  // namespace
}  // namespace llmq::testing
