// Which positions each protocol scores: counted by hand on short texts.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "base/error.h"
#include "evaluate/perplexity.h"

namespace llmq {
namespace {

ModelSpec spec_with_positions(std::int64_t positions) {
  ModelSpec spec;
  spec.max_position = positions;
  return spec;
}

std::vector<std::int32_t> ramp(int count) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

// ids are their own positions, so the multiset of scored ids shows what was scored how often.
std::multiset<std::int32_t> scored(const std::vector<Window>& windows) {
  std::multiset<std::int32_t> ids;
  for (const Window& window : windows)
    ids.insert(window.tokens.begin() + window.first_scored, window.tokens.end());
  return ids;
}

TEST(Windows, HfDropsTheRestAndLeavesOutTheFirstOfEach) {
  const auto windows = cut_windows(ramp(27), resolve_protocol("hf", 8, {}, 0, spec_with_positions(64)), {});
  ASSERT_EQ(windows.size(), 3u);
  EXPECT_EQ(scored(windows).size(), 3u * 7);
  EXPECT_EQ(scored(windows).count(0) + scored(windows).count(8) + scored(windows).count(16), 0u);
}

TEST(Windows, StrideScoresEveryLaterPositionExactlyOnce) {
  const auto windows = cut_windows(ramp(32), resolve_protocol("hf", 8, 3, 0, spec_with_positions(64)), {});
  const auto ids = scored(windows);
  for (std::int32_t id = 1; id <= windows.back().tokens.back(); ++id) EXPECT_EQ(ids.count(id), 1u) << id;
}

TEST(Windows, LlamaCppPutsBosFirstAndScoresHalfMinusOne) {
  const auto windows =
      cut_windows(ramp(64), resolve_protocol("llama.cpp", 32, {}, 0, spec_with_positions(64)), 99);
  ASSERT_EQ(windows.size(), 2u);
  EXPECT_EQ(windows[1].tokens[0], 99);
  EXPECT_EQ(scored(windows).size(), 2u * 15) << "llama-perplexity scores n_ctx/2 - 1 of each window";
}

TEST(Windows, MaxWindowsStopsAndShortTextIsRefused) {
  const auto protocol = resolve_protocol("hf", 8, {}, 2, spec_with_positions(64));
  EXPECT_EQ(cut_windows(ramp(64), protocol, {}).size(), 2u);
  EXPECT_THROW(cut_windows(ramp(7), protocol, {}), Error);
}

TEST(Windows, ProtocolIdsAndDefaults) {
  EXPECT_EQ(resolve_protocol("hf", {}, {}, 0, spec_with_positions(8192)).id(), "hf-2048");
  EXPECT_EQ(resolve_protocol("hf", {}, {}, 0, spec_with_positions(512)).id(), "hf-512");
  EXPECT_EQ(resolve_protocol("llama.cpp", {}, {}, 0, spec_with_positions(8192)).id(), "llama.cpp-512");
  EXPECT_EQ(resolve_protocol("hf", 1024, 256, 0, spec_with_positions(8192)).id(), "hf-1024-stride-256");
  EXPECT_THROW(resolve_protocol("hf", 4096, {}, 0, spec_with_positions(2048)), Error);
  EXPECT_THROW(resolve_protocol("llama.cpp", 512, 256, 0, spec_with_positions(2048)), Error);
}

}  // namespace
}  // namespace llmq
