#include "base/side_by_side.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

namespace llmq {
namespace {

TEST(SideBySide, EachThreadWorksOnceAndTheFirstIsTheCaller) {
  std::mutex mutex;
  std::vector<std::size_t> seen;
  const std::thread::id caller = std::this_thread::get_id();
  side_by_side(3, [&](std::size_t thread, const std::atomic<bool>& failed) {
    const std::lock_guard lock(mutex);
    seen.push_back(thread);
    EXPECT_EQ(std::this_thread::get_id() == caller, thread == 0);
    EXPECT_FALSE(failed);
  });
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, (std::vector<std::size_t>{0, 1, 2}));
}

// Whoever works on for as long as nobody failed ends, and the error arrives.
TEST(SideBySide, AnErrorEndsTheOthers) {
  for (const std::size_t failing : {0, 1}) {
    const auto run = [&] {
      side_by_side(3, [&](std::size_t thread, const std::atomic<bool>& failed) {
        if (thread == failing) throw std::runtime_error("the device is gone");
        while (!failed) std::this_thread::yield();
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
  }
}

}  // namespace
}  // namespace llmq
