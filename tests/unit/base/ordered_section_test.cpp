#include "base/ordered_section.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace llmq {
namespace {

void dawdle() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

// Twelve parts whose sum shows their order: in FP32, 1e8 swallows what is added to it.
TEST(OrderedSection, PartsAreAddedInOrderHoweverLateAThreadIs) {
  constexpr std::size_t kParts = 12;
  const auto part = [](std::size_t i) { return i % 3 == 0 ? 1e8f : i % 3 == 1 ? 3.0f : -1e8f; };
  float expected = 0;
  for (std::size_t i = 0; i < kParts; ++i) expected += part(i);
  for (std::size_t late = 0; late < 3; ++late) {
    OrderedSection turns;
    float sum = 0;
    std::vector<std::size_t> order;
    side_by_side(3, turns, [&](std::size_t thread) {
      for (std::size_t i = thread; i < kParts; i += 3) {
        if (thread == late) dawdle();
        turns.wait(i);
        sum += part(i);
        order.push_back(i);
        turns.pass();
      }
    });
    ASSERT_EQ(order.size(), kParts);
    for (std::size_t i = 0; i < kParts; ++i) EXPECT_EQ(order[i], i);
    EXPECT_EQ(sum, expected);
  }
}

TEST(OrderedSection, AnErrorEndsThoseThatWait) {
  for (const std::size_t failing : {0, 1}) {
    OrderedSection turns;
    int added = 0;
    const auto run = [&] {
      side_by_side(3, turns, [&](std::size_t thread) {
        if (thread == failing) {
          dawdle();
          throw std::runtime_error("the device is gone");
        }
        for (std::size_t i = thread; i < 9; i += 3) {
          turns.wait(i);
          ++added;
          turns.pass();
        }
      });
    };
    EXPECT_THROW(
        {
          try {
            run();
          } catch (const std::runtime_error& error) {
            EXPECT_STREQ(error.what(), "the device is gone");
            throw;
          }
        },
        std::runtime_error);
    EXPECT_EQ(added, static_cast<int>(failing));
  }
}

}  // namespace
}  // namespace llmq
