// kernels/cuda/gram_bf16.h against sums in double, and bits that must not depend on how tokens are split.
#include "kernels/cuda/gram_bf16.h"

#include <gtest/gtest.h>

#include <vector>

#include "emulation_fixture.h"
#include "kernels/cuda/launch_emulated.h"

namespace llmq::cuda {
namespace {

using namespace llmq::testing;

struct GramCase {
  int64_t tokens, channels, split;
};

// g after the tokens [first, end).
void add_tokens(const GramCase& c, const std::vector<BFloat16>& x, int64_t first, int64_t end, std::vector<float>& g) {
  emulate<GramBFloat16>({g.data(), c.channels, x.data() + first * c.channels, c.channels, end - first, c.channels});
}

TEST(CudaGram, UpperTrianglesAgreeWithDoubleForAnySplitAtSixteens) {
  for (const GramCase& c : {GramCase{1, 1, 0}, GramCase{37, 70, 16}, GramCase{70, 130, 48}, GramCase{50, 65, 32}}) {
    Numbers numbers(static_cast<std::uint64_t>(c.tokens * 7 + c.channels));
    const std::vector<float> f32 = rounded(DType::kBF16, numbers.values(c.tokens * c.channels, 8));
    std::vector<BFloat16> bf16;
    for (const float v : f32) bf16.push_back(to_bfloat16(v));
    std::vector<float> g(static_cast<std::size_t>(c.channels * c.channels), 0.5f), split = g;
    add_tokens(c, bf16, 0, c.tokens, g);
    add_tokens(c, bf16, 0, c.split, split);
    add_tokens(c, bf16, c.split, c.tokens, split);
    EXPECT_TRUE(same_bits(g, split));
    std::vector<double> want, bound;
    for (int64_t i = 0; i < c.channels; ++i)
      for (int64_t j = 0; j < c.channels; ++j) {
        double sum = 0.5, magnitude = 0.5;
        for (int64_t t = 0; t < c.tokens && j >= i; ++t) {
          const double term =
              static_cast<double>(f32[static_cast<std::size_t>(t * c.channels + i)]) * f32[static_cast<std::size_t>(t * c.channels + j)];
          sum += term, magnitude += std::fabs(term);
        }
        want.push_back(sum), bound.push_back(j < i ? 0 : fp32_dot_bound(c.tokens + 1, magnitude));
      }
    EXPECT_EQ(outside(g, want, bound), "");
  }
}

}  // namespace
}  // namespace llmq::cuda
