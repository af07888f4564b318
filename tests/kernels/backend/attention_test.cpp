// Paged causal attention on every backend, within a bound built from its two sums and its softmax.
#include "attention_fixture.h"

namespace llmq::testing {
namespace {

// exp in FP32 is good to 4 units in the last place on every backend: the contract of kernels/cpu.
constexpr double kExpError = 4 * 0x1p-23;

// The greatest error of a score of this row and head, in the exponent: a dot product of head_dim terms
// (bfloat16 compute may round q), the product with the scale, and the subtraction of the maximum.
double score_error(const AttentionCase& c, const std::vector<float>& keys, const float* q,
                   std::int64_t kv_head, std::int64_t first, std::int64_t last) {
  double worst = 0;
  for (std::int64_t p = first; p <= last; ++p) {
    const float* key = keys.data() + (p * c.kv_heads + kv_head) * c.head_dim;
    double sum = 0;
    for (int d = 0; d < c.head_dim; ++d)
      sum += std::fabs(static_cast<double>(q[d]) * static_cast<double>(key[d]));
    worst = std::max(worst, sum);
  }
  const double rounding = c.compute == Compute::kBFloat16 ? kBf16Roundoff : 0;
  const double scaled = worst / std::sqrt(static_cast<double>(c.head_dim));
  return rounding * scaled + fp32_dot_bound(c.head_dim, (1 + rounding) * scaled) + 4 * kFp32Roundoff * scaled;
}

std::vector<double> attention_bound(const AttentionCase& c, const AttentionData& data,
                                    const std::vector<float>& want, const std::vector<float>& means) {
  std::vector<double> bound;
  std::int64_t row = 0;
  for (std::size_t s = 0; s < c.sequences.size(); ++s)
    for (std::int64_t i = 0; i < c.sequences[s].second; ++i, ++row)
      for (int head = 0; head < c.heads; ++head) {
        const std::int64_t last = c.sequences[s].first + i;
        const std::int64_t first =
            c.sliding_window > 0 ? std::max<std::int64_t>(0, last - c.sliding_window + 1) : 0;
        const double error = score_error(c, data.keys[s], data.q.data() + (row * c.heads + head) * c.head_dim,
                                         head / (c.heads / c.kv_heads), first, last);
        // The online softmax multiplies what it has by an exp and rounds, once per tile of 64; bfloat16
        // compute may round the weights.
        const double tiles = static_cast<double>(last / 64 + 2);
        const double weight_error =
            tiles * (kExpError + 2 * kFp32Roundoff) + (c.compute == Compute::kBFloat16 ? kBf16Roundoff : 0);
        for (int d = 0; d < c.head_dim; ++d) {
          const std::size_t at = static_cast<std::size_t>((row * c.heads + head) * c.head_dim + d);
          double allowed = softmax_mean_bound(last - first + 1, error, weight_error, means[at]) +
                           fp32_rounding_bound(want[at]);
          if (c.compute == Compute::kBFloat16) allowed += bf16_rounding_bound(std::fabs(want[at]) + allowed);
          bound.push_back(allowed);
        }
      }
  return bound;
}

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
