// Serving of the golden models (tests/golden/models): requests of many kinds, and what each gets alone.
#pragma once
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "runtime/generate.h"
#include "runtime/serving_engine.h"
#include "small_engine.h"

namespace llmq::testing {

inline Engine open_golden(const std::string& name, std::int64_t kv_tokens, std::int64_t most = 64) {
  Engine::Options options;
  options.max_context = most;
  options.kv_tokens = kv_tokens;
  options.block_size = 4;
  return Engine::load(open_checkpoint(system_io(), LLMQ_SOURCE_DIR "/tests/golden/models/" + name + "/model"),
                      make_cpu_backend(2), options);
}

// Some of several answers, greedy or not; of `beginning` tokens, which every second has in common, and some
// behind them.
inline std::vector<GenerationRequest> mixed_requests(std::int32_t beginning = 12, std::uint64_t count = 9) {
  std::mt19937 random(5);
  std::vector<GenerationRequest> requests;
  for (std::uint64_t id = 1; id <= count; ++id) {
    GenerationRequest request;
    request.id = id;
    for (std::int32_t i = 0; i < beginning && id % 2 == 0; ++i) request.prompt.push_back(3 + i * 7 % 90);
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

inline std::vector<std::int32_t> alone_of(Engine& engine, const GenerationRequest& request, int index) {
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

inline Served serve(Engine& engine, const std::vector<GenerationRequest>& requests,
                    const SchedulerLimits& limits, Drafter* drafter, std::int64_t most = 60) {
  ServingOptions options;
  options.limits = limits;
  options.limits.max_model_len = most;
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

}  // namespace llmq::testing
