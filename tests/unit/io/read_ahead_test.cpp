// What is read ahead: the right bytes, each once, no more than the window, and nothing that was not asked for
// in the end.
#include "io/read_ahead.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

#include "base/io.h"
#include "support/temporary_directory.h"

namespace llmq {
namespace {

using testing::TemporaryDirectory;

constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20, kRange = 6 * kMebibyte, kRanges = 5;

class ReadsAhead : public ::testing::Test {
 protected:
  ReadsAhead() {
    std::string content(kRange * kRanges, 'x');
    for (std::size_t i = 0; i < content.size(); i += 997) content[i] = static_cast<char>(i / 997);
    content_ = content;
    mapping_ = io_->open(directory_.write("f", content))->map();
  }
  std::uint64_t read() const { return io_->counters().bytes_read; }
  // Waits until that much is read, five seconds at most.
  bool reads(std::uint64_t bytes) const {
    for (int i = 0; i < 5000 && read() < bytes; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return read() >= bytes;
  }
  bool same(std::uint64_t range) const {
    return std::memcmp(mapping_->bytes().data() + range * kRange, content_.data() + range * kRange, kRange) ==
           0;
  }

  const TemporaryDirectory directory_;
  const std::unique_ptr<Io> io_ = make_system_io(Reading::kCached);
  std::string content_;
  std::unique_ptr<Mapping> mapping_;
};

TEST_F(ReadsAhead, InOrderAndNoFurtherThanTheWindow) {
  ReadAhead ahead;
  for (std::uint64_t i = 0; i < kRanges; ++i) ahead.add(*mapping_, i * kRange, kRange, 2 * kRange);
  for (std::uint64_t i = 0; i < kRanges; ++i) {
    EXPECT_TRUE(reads(std::min(i + 2, kRanges) * kRange)) << i << ": " << read();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(read(), std::min(i + 2, kRanges) * kRange);
    const Lease lease = ahead.take_over(*mapping_, i * kRange, kRange);
    EXPECT_TRUE(lease);
    EXPECT_TRUE(same(i));
  }
  EXPECT_EQ(read(), kRanges * kRange);
}

TEST_F(ReadsAhead, WhatIsTakenBeforeItsTurnIsNotReadAhead) {
  ReadAhead ahead;
  ahead.add(*mapping_, 0, kRange, kRange);
  EXPECT_TRUE(reads(kRange));
  ahead.add(*mapping_, kRange, kRange, kRange);  // there is no room
  EXPECT_FALSE(ahead.take_over(*mapping_, kRange, kRange));
  EXPECT_FALSE(ahead.take_over(*mapping_, 2 * kRange, kRange)) << "nobody named it";
  EXPECT_TRUE(ahead.take_over(*mapping_, 0, kRange));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(read(), kRange);
}

// Whoever asks while a range is being read gets it whole, and no block is read twice.
TEST_F(ReadsAhead, TakenInTheMiddle) {
  for (int round = 0; round < 20; ++round) {
    const auto io = make_system_io(Reading::kCached);
    const auto mapping = io->open(directory_ / "f")->map();
    ReadAhead ahead;
    for (std::uint64_t i = 0; i < kRanges; ++i) ahead.add(*mapping, i * kRange, kRange, 3 * kRange);
    for (std::uint64_t i = 0; i < kRanges; ++i) {
      const Lease taken = ahead.take_over(*mapping, i * kRange, kRange),
                  held = mapping->lease(i * kRange, kRange);
      EXPECT_EQ(std::memcmp(mapping->bytes().data() + i * kRange, content_.data() + i * kRange, kRange), 0);
    }
    EXPECT_EQ(io->counters().bytes_read, kRanges * kRange);
  }
}

TEST_F(ReadsAhead, AnErrorIsLeftToWhoAsks) {
  std::unique_ptr<Io> direct = make_system_io(Reading::kDirect);
  std::unique_ptr<Mapping> mapping;
  try {
    mapping = direct->open(directory_ / "f")->map();
  } catch (const std::exception& error) {
    GTEST_SKIP() << error.what();
  }
  std::filesystem::resize_file(directory_ / "f", kRange);
  ReadAhead ahead;
  ahead.add(*mapping, 0, 2 * kRange, 4 * kRange);
  for (int i = 0; i < 5000 && direct->counters().bytes_read == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_THROW(ahead.take_over(*mapping, 0, 2 * kRange), std::exception);
  EXPECT_FALSE(ahead.take_over(*mapping, 0, kRange)) << "it is gone";
}

}  // namespace
}  // namespace llmq
