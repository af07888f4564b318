// Freed blocks come back to requests of their size, within the bound on what is kept.
#include "device/cpu/recycled_memory.h"
#include "device/backend_scratch.h"

#include <cstdint>

#include <gtest/gtest.h>

namespace llmq {
namespace {

constexpr std::size_t kMega = std::size_t{1} << 20;

TEST(RecycledMemory, HandsAFreedBlockToTheNextOfItsSize) {
  const auto memory = recycled_memory(8 * kMega);
  Buffer first(memory, 3 * kMega);
  void* const at = first.get();
  const Buffer other(memory, 3 * kMega);
  EXPECT_NE(other.get(), at);
  first.reset();
  const Buffer smaller(memory, kMega);
  EXPECT_NE(smaller.get(), at) << "a block of another size";
  const Buffer again(memory, 3 * kMega - 4096);
  EXPECT_EQ(again.get(), at);
  EXPECT_EQ(again.bytes(), 3 * kMega - 4096);
}

TEST(RecycledMemory, KeepsNoMoreThanItMay) {
  const auto memory = recycled_memory(2 * kMega);
  Buffer a(memory, 2 * kMega), b(memory, 2 * kMega);
  void* const kept = a.get();
  a.reset();
  b.reset();  // beyond the bound: back to the system
  const Buffer first(memory, 2 * kMega), second(memory, 2 * kMega);
  EXPECT_EQ(first.get(), kept);
  EXPECT_NE(second.get(), kept);
}

TEST(RecycledMemory, WhatIsSaidToBeRecycledIs) {
  for (const std::size_t bytes : {31 * kMega, 32 * kMega, 32 * kMega + 4096, 48 * kMega}) {
    const auto memory = recycled_memory(64 * kMega);
    Buffer first(memory, bytes);
    first.as<unsigned char>()[0] = 77;
    void* const at = first.get();
    first.reset();
    const Buffer between = Buffer(host_memory(), bytes), again(memory, bytes);
    EXPECT_EQ(again.get() == at, is_recycled(bytes)) << bytes;
  }
}

TEST(RecycledMemory, EveryBlockIsAlignedAndWholeAtOddSizes) {
  const auto memory = recycled_memory(64 * kMega);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{65535}, std::size_t{65536},
                                  std::size_t{65537}, 5 * kMega / 4 + 1, 32 * kMega, 32 * kMega + 1}) {
    for (int round = 0; round < 2; ++round) {
      const Buffer block(memory, bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.get()) % 64, 0u) << bytes;
      for (std::size_t i = 0; i < bytes; ++i) block.as<unsigned char>()[i] = static_cast<unsigned char>(i);
    }
  }
}

}  // namespace
}  // namespace llmq
