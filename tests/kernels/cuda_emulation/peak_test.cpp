// The loops that peaks are measured with do what is counted.
#include "kernels/cuda/peak.h"

#include <gtest/gtest.h>

#include "kernels/cuda/launch_emulated.h"

namespace llmq::cuda {
namespace {

template <class Product>
void expect_products(uint32_t word, float number) {
  constexpr std::int64_t kBlocks = 2, kSteps = 3;
  std::vector<float> sums(kBlocks * 256);
  emulate<PeakProducts<Product>>({kBlocks, kSteps, word, sums.data()});
  // A thread holds four numbers of each chain's 16 x 8, all of them kSteps sums of kDepth products.
  const float each = static_cast<float>(8 * 4 * kSteps * Product::kDepth) * number * number;
  for (const float sum : sums) EXPECT_EQ(sum, each);
  EXPECT_EQ(PeakProducts<Product>::kOperations, 8 * 256 * 4 * Product::kDepth * 2.0)
      << "two for each product of each thread's numbers";
}

TEST(Peak, EveryProductIsMade) {
  expect_products<MatrixBFloat16>(0x40004000u, 2);
  expect_products<MatrixInt8>(0x03030303u, 3);
  std::vector<float> sums(2 * 256);
  emulate<PeakFloat32>({2, 5, 3.0f, sums.data()});
  for (const float sum : sums) EXPECT_EQ(sum, 8 * 5 * 9 + 28);
  EXPECT_EQ(PeakFloat32::kOperations, 8 * 256 * 2.0);
}

TEST(Peak, EveryWordIsRead) {
  std::vector<ReadMemory::Vector> memory(2 * ReadMemory::kBlockBytes / 16);
  std::vector<uint32_t> sums(2 * 256);
  const auto seen = [&] {
    emulate<ReadMemory>({2, memory.data(), sums.data()});
    uint32_t all = 0;
    for (const uint32_t sum : sums) all ^= sum;
    return all;
  };
  EXPECT_EQ(seen(), 0u);
  for (std::size_t at = 0; at < memory.size(); at += 997)
    for (uint32_t& word : memory[at].words) {
      word = 5;
      EXPECT_EQ(seen(), 5u) << at;
      word = 0;
    }
}

}  // namespace
}  // namespace llmq::cuda
