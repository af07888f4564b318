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
template <class Kernel>
void add_tokens(const GramCase& c, const AlignedWords& x, int64_t first, int64_t end, std::vector<float>& g) {
  emulate<Kernel>({g.data(), c.channels,
                   reinterpret_cast<const BFloat16*>(x.words.data()) + first * c.channels, c.channels,
                   end - first, c.channels});
}

TEST(CudaGram, UpperTrianglesAgreeWithDoubleForAnySplitAtSixteens) {
  for (const GramCase& c : {GramCase{1, 1, 0}, GramCase{37, 70, 16}, GramCase{70, 130, 48},
                            GramCase{50, 65, 32}, GramCase{130, 264, 48}, GramCase{170, 136, 16}}) {
    Numbers numbers(static_cast<std::uint64_t>(c.tokens * 7 + c.channels));
    const std::vector<float> f32 = rounded(DType::kBF16, numbers.values(c.tokens * c.channels, 8));
    AlignedWords bf16;
    bf16.words.assign(f32.size() / 2 + 1, 0);
    for (std::size_t i = 0; i < f32.size(); ++i)
      bf16.words[i / 2] |= uint32_t{to_bfloat16(f32[i]).bits} << (i % 2 * 16);
    std::vector<float> g(static_cast<std::size_t>(c.channels * c.channels), 0.5f), split = g;
    add_tokens<GramBFloat16<2, false>>(c, bf16, 0, c.tokens, g);
    add_tokens<GramBFloat16<2, false>>(c, bf16, 0, c.split, split);
    add_tokens<GramBFloat16<2, false>>(c, bf16, c.split, c.tokens, split);
    EXPECT_TRUE(same_bits(g, split));
    if (c.channels % 8 == 0) {
      std::vector<float> two(g.size(), 0.5f), three = two;
      add_tokens<GramBFloat16<2, true>>(c, bf16, 0, c.tokens, two);
      add_tokens<GramBFloat16<3, true>>(c, bf16, 0, c.tokens, three);
      EXPECT_TRUE(same_bits(g, two));
      EXPECT_TRUE(same_bits(g, three));
    }
    std::vector<double> want, bound;
    for (int64_t i = 0; i < c.channels; ++i)
      for (int64_t j = 0; j < c.channels; ++j) {
        double sum = 0.5, magnitude = 0.5;
        for (int64_t t = 0; t < c.tokens && j >= i; ++t) {
          const double term = static_cast<double>(f32[static_cast<std::size_t>(t * c.channels + i)]) *
                              f32[static_cast<std::size_t>(t * c.channels + j)];
          sum += term, magnitude += std::fabs(term);
        }
        want.push_back(sum), bound.push_back(j < i ? 0 : fp32_dot_bound(c.tokens + 1, magnitude));
      }
    EXPECT_EQ(outside(g, want, bound), "");
  }
}

}  // namespace
}  // namespace llmq::cuda
