// The emulation itself: a sum of a block through shared memory with a barrier, and without; copies that
// arrive when they are waited for; fragments against plain products.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "kernels/cuda/launch_emulated.h"

namespace llmq::cuda {
namespace {

// y[block] = sum of its 64 numbers, by halves.
template <bool kBarrier>
struct BlockSum {
  struct Arguments {
    float* y;
    const float* x;
    int64_t blocks;
  };
  static constexpr int kThreads = 64;
  struct Shared {
    Array<float, kThreads> part;
  };
  static Grid grid(const Arguments& a) { return {a.blocks}; }
  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared& shared) {
    block.each([&](int t) { shared.part.set(t, t, a.x[int64_t{block.x} * kThreads + t]); });
    for (int half = kThreads / 2; half > 0; half /= 2) {
      if (kBarrier) block.barrier();
      block.each([&](int t) {
        if (t < half) shared.part.set(t, t, shared.part.get(t, t) + shared.part.get(t, t + half));
      });
    }
    block.each([&](int t) {
      if (t == 0) a.y[block.x] = shared.part.get(t, 0);
    });
  }
};

TEST(CudaEmulation, SumsABlockAndSeesAMissingBarrier) {
  std::vector<float> x(3 * 64), y(3);
  std::iota(x.begin(), x.end(), 1.0f);
  emulate<BlockSum<true>>({y.data(), x.data(), 3});
  EXPECT_EQ(y, (std::vector<float>{64 * 65 / 2, 64 * 65 / 2 + 64 * 64, 64 * 65 / 2 + 64 * 128}));
  EXPECT_THROW(emulate<BlockSum<false>>({y.data(), x.data(), 3}), EmulationFault);
}

// y[i] = x[i + shift], by way of shared memory; kWait and kBarrier leave out what a device would need.
template <bool kWait, bool kBarrier>
struct Copy {
  struct Arguments {
    uint32_t* y;
    const uint32_t* x;
    int present;
    int shift;
  };
  static constexpr int kThreads = 32;
  struct Shared {
    Array<uint32_t, 4 * kThreads> words;
  };
  static Grid grid(const Arguments&) { return {}; }
  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared& shared) {
    block.each([&](int t) { shared.words.copy_async(t, 4 * t, a.x + 4 * t, t < a.present); });
    block.commit_copies();
    if (kWait) block.template wait_copies<0>();
    if (kBarrier) block.barrier();
    block.each([&](int t) {
      for (int i = 0; i < 4; ++i)
        a.y[4 * t + i] = shared.words.get(t, (4 * t + i + a.shift) % (4 * kThreads));
    });
    block.template wait_copies<0>();
  }
};

TEST(CudaEmulation, CopiesArriveWhenWaitedFor) {
  alignas(16) uint32_t x[128];
  std::iota(x, x + 128, 100u);
  std::vector<uint32_t> y(128);
  emulate<Copy<true, true>>({y.data(), x, 5, 1});
  for (unsigned i = 0; i < 128; ++i) EXPECT_EQ(y[i], i + 1 < 20 ? 101 + i : i == 127 ? 100u : 0u) << i;
  emulate<Copy<true, false>>({y.data(), x, 32, 0});  // each thread reads its own
  EXPECT_THROW((emulate<Copy<true, false>>({y.data(), x, 32, 1})), EmulationFault);
  EXPECT_THROW((emulate<Copy<false, true>>({y.data(), x, 32, 1})), EmulationFault);
  EXPECT_THROW((emulate<Copy<true, true>>({y.data(), x + 1, 5, 1})), EmulationFault);
}

// Four reads at once are four reads: aligned, of what was written, before nobody's barrier.
TEST(CudaEmulation, FourAtOnceAreReadAsOneByOne) {
  block_progress() = {};
  Array<float, 8> words;
  for (int i = 0; i < 7; ++i) words.set(0, i, static_cast<float>(i));
  float four[4];
  words.get4(0, 0, four);
  EXPECT_EQ(std::vector<float>(four, four + 4), (std::vector<float>{0, 1, 2, 3}));
  EXPECT_THROW(words.get4(0, 2, four), EmulationFault);  // not on 16 bytes
  EXPECT_THROW(words.get4(0, 4, four), EmulationFault);  // the last was not written
  EXPECT_THROW(words.get4(1, 0, four), EmulationFault);  // another wrote them
  Block<2>().barrier();
  words.get4(1, 0, four);
  EXPECT_THROW(words.set(0, 3, 1.0f), EmulationFault);  // another read it
}

// D = A B of one warp, loaded as the manual of PTX draws the fragments (figures of m16n8k16 for BF16,
// m16n8k32 for S8).
TEST(CudaEmulation, FragmentsAreThoseOfTheManual) {
  const auto a = [](int row, int k) { return static_cast<float>((row * 7 + k * 3) % 11 - 5); };
  const auto b = [](int k, int column) { return static_cast<float>((k * 5 + column * 2) % 13 - 6); };
  const auto byte = [](float v, int at) {
    return static_cast<uint32_t>(static_cast<uint8_t>(static_cast<int8_t>(v))) << (8 * at);
  };
  Block<32> block;
  PerThread<FragmentA, 32> a16, a8;
  PerThread<FragmentB, 32> b16, b8;
  PerThread<Sums, 32> d16;
  PerThread<IntegerSums, 32> d8;
  block.each([&](int lane) {
    const int group = lane >> 2, t = lane & 3;
    for (int i = 0; i < 4; ++i) d16[lane].v[i] = 0, d8[lane].v[i] = 0;
    // "row = groupID for a0,a1,a4,a5; groupID + 8 for a2,a3,a6,a7; col = threadID * 2 + (i & 1), + 8 for i >=
    // 4"
    for (int i = 0; i < 8; i += 2) {
      const int row = i == 0 || i == 4 ? group : group + 8, k = t * 2 + (i >= 4 ? 8 : 0);
      a16[lane].v[i / 2] = bfloat16_pair(a(row, k), a(row, k + 1));
    }
    // "row = threadID * 2 + (i & 1), + 8 for i >= 2; col = groupID"
    for (int i = 0; i < 4; i += 2)
      b16[lane].v[i / 2] = bfloat16_pair(b(t * 2 + i * 4, group), b(t * 2 + i * 4 + 1, group));
    // "row = groupID for 0 <= i < 4 or 8 <= i < 12, else groupID + 8; col = threadID * 4 + (i & 3), + 16 for
    // i >= 8"
    for (int i = 0; i < 4; ++i) a8[lane].v[i] = 0;
    for (int i = 0; i < 16; ++i)
      a8[lane].v[i / 4] |= byte(
          a(i < 4 || (i >= 8 && i < 12) ? group : group + 8, t * 4 + (i & 3) + (i >= 8 ? 16 : 0)), i & 3);
    for (int i = 0; i < 2; ++i) b8[lane].v[i] = 0;
    for (int i = 0; i < 8; ++i)
      b8[lane].v[i / 4] |= byte(b(t * 4 + (i & 3) + (i >= 4 ? 16 : 0), group), i & 3);
  });
  block.mma_bf16([&](int t) -> Sums& { return d16[t]; }, [&](int t) -> FragmentA& { return a16[t]; },
                 [&](int t) -> FragmentB& { return b16[t]; });
  block.mma_s8([&](int t) -> IntegerSums& { return d8[t]; }, [&](int t) -> FragmentA& { return a8[t]; },
               [&](int t) -> FragmentB& { return b8[t]; });
  const auto product = [&](int row, int column, int depth) {
    float sum = 0;
    for (int k = 0; k < depth; ++k) sum += a(row, k) * b(k, column);
    return sum;
  };
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      // "row = groupID for c0,c1; groupID + 8 for c2,c3; col = threadID * 2 + (i & 1)"
      const int row = (lane >> 2) + (i < 2 ? 0 : 8), column = (lane & 3) * 2 + (i & 1);
      EXPECT_EQ(d16[lane].v[i], product(row, column, 16));
      EXPECT_EQ(static_cast<float>(d8[lane].v[i]), product(row, column, 32));
    }
}

}  // namespace
}  // namespace llmq::cuda
