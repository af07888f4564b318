// Engines of the small models in tests/models, and what requests get from them.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/open_checkpoint.h"
#include "runtime/engine.h"
#include "runtime/generation.h"

namespace llmq::testing {

inline const std::string kModels = LLMQ_SOURCE_DIR "/tests/models/";

inline Engine open(const std::string& model, std::int64_t kv_tokens, bool prefix_caching, int threads = 2,
                   std::optional<KvFormats> packed = {}, int members = 1) {
  Engine::Options options;
  for (int i = 1; i < members; ++i) options.further_members.push_back(make_cpu_backend(threads));
  options.max_context = 256;
  options.kv_tokens = kv_tokens;
  options.prefix_caching = prefix_caching;
  if (packed) {
    options.kv = KvType{DType::kBF16, packed};
    for (std::int32_t i = 0; i < 300; ++i) options.kv_probe.push_back(3 + i * 37 % 2000);
  }
  return Engine::load(open_checkpoint(system_io(), kModels + model), make_cpu_backend(threads), options);
}

using Answers = std::map<std::pair<std::uint64_t, int>, std::vector<std::int32_t>>;
using Ends = std::map<std::pair<std::uint64_t, int>, FinishReason>;

inline void collect(const std::vector<GenerationEvent>& events, Answers& answers, Ends& ends) {
  for (const GenerationEvent& event : events) {
    const std::pair<std::uint64_t, int> who{event.id, event.index};
    EXPECT_EQ(ends.count(who), 0u) << "an event after the last";
    answers[who].insert(answers[who].end(), event.tokens.begin(), event.tokens.end());
    if (event.finish) ends[who] = *event.finish;
  }
}

}  // namespace llmq::testing
