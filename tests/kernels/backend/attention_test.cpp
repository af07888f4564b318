// Paged causal attention on every backend, within a bound built from its two sums and its softmax.
#include "attention_fixture.h"

namespace llmq::testing {
namespace {

class Attention : public BackendTest {
 protected:
  void check(const AttentionCase& c, double q_scale = 1) {
    const AttentionData data = make_attention_data(c, 3, q_scale);
    AttentionData magnitudes = data;
    for (std::vector<float>& values : magnitudes.values) values = absolute(values);
    const std::vector<float> want = run_attention(oracle(), c, data, true),
                             means = run_attention(oracle(), c, magnitudes, true);
    const std::vector<double> bound = attention_bound(c, data, want, means);
    ASSERT_EQ(outside(run_attention(backend(), c, data), widened(want), bound), "")
        << "heads " << c.heads << "/" << c.kv_heads << " dim " << c.head_dim << " window " << c.sliding_window
        << " block " << c.block_size;
    if (q_scale > 1) return;
    // Another value at the first position is outside the bound.
    if (c.sliding_window != 0 || c.sequences[0].first + c.sequences[0].second >= 40) return;
    AttentionData planted = data;
    planted.values[0][0] += 4;  // row 0 sees this position alone
    EXPECT_NE(outside(run_attention(oracle(), c, planted), widened(want), bound), "");
  }
};

TEST_P(Attention, OddShapes) {
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16})
    for (const int dim : {2, 16, 18, 64, 80, 128})
      for (const auto& [heads, kv_heads] : std::vector<std::pair<int, int>>{{1, 1}, {4, 2}, {9, 3}, {6, 1}}) {
        check({heads, kv_heads, dim, 0, 16, {{0, 1}}, compute});
        check({heads, kv_heads, dim, 0, 16, {{0, 17}, {30, 1}, {5, 3}}, compute});
      }
}

TEST_P(Attention, LongerThanATile) {
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16}) {
    check({3, 1, 64, 0, 16, {{0, 130}, {191, 2}, {63, 1}, {64, 1}}, compute});
    check({2, 2, 32, 0, 1, {{62, 5}}, compute});
    check({2, 2, 32, 0, 48, {{62, 70}}, compute});
  }
}

TEST_P(Attention, SlidingWindow) {
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16})
    for (const std::int64_t window : {1, 2, 5, 63, 64, 65, 500})
      check({4, 2, 16, window, 16, {{0, 70}, {140, 3}, {4, 1}}, compute});
}

// Scores so far apart that exp underflows and only the greatest key counts; every earlier maximum is left
// behind by a later one.
TEST_P(Attention, ExtremeScores) { check({4, 2, 16, 0, 16, {{0, 100}}, Compute::kFloat32}, 300); }

INSTANTIATE_TEST_SUITE_P(Every, Attention, ::testing::ValuesIn(backends({1, 2})), param_name);

}  // namespace
}  // namespace llmq::testing
