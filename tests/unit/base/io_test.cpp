#include "base/io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "base/disk/held_blocks.h"
#include "base/error.h"
#include "tests/support/failing_io.h"
#include "tests/support/temporary_directory.h"

namespace llmq {
namespace {

using testing::CountingIo;
using ::testing::ElementsAre;
using testing::FailingIo;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TemporaryDirectory;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

template <typename F>
Error failure(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorKind::kInternal, ErrorDetail{"nothing failed", {}, {}, {}});
}

TEST(SystemIo, WritesAndReadsAtOffsets) {
  const TemporaryDirectory directory;
  const IoCounters before = system_io().counters();
  {
    const auto file = system_io().create(directory / "f");
    file->reserve(16);
    EXPECT_EQ(file->size(), 16u);
    file->write_at(4, bytes_of("abcd"));
    file->sync();
  }
  const auto file = system_io().open(directory / "f");
  char text[4];
  file->read_at(4, std::as_writable_bytes(std::span(text)));
  EXPECT_EQ(std::string_view(text, 4), "abcd");
  EXPECT_EQ(system_io().counters().bytes_written - before.bytes_written, 4u);
  EXPECT_EQ(system_io().counters().bytes_read - before.bytes_read, 4u);
}

TEST(SystemIo, ReadingPastTheEndNamesTheByte) {
  const TemporaryDirectory directory;
  const auto file = system_io().open(directory.write("f", "abc"));
  std::byte into[8];
  const Error error = failure([&] { file->read_at(1, into); });
  EXPECT_EQ(error.kind(), ErrorKind::kIo);
  EXPECT_THAT(error.what(), HasSubstr("ends at byte 3"));
}

TEST(SystemIo, OpensRegularFilesOnly) {
  const TemporaryDirectory directory;
  ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0600), 0);
  for (const auto& [path, expected] : {std::pair<Path, const char*>{directory / "absent", "does not exist"},
                                       {directory.path(), "is a directory"},
                                       {directory / "pipe", "not a regular file"},  // and does not block
                                       {"/dev/null", "not a regular file"},
                                       {directory / "absent" / "below", "does not exist"}}) {
    const Path& place = path;
    const Error error = failure([&] { system_io().open(place); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput) << path;
    EXPECT_THAT(error.what(), HasSubstr(expected));
    EXPECT_EQ(error.detail().file, path.string());
  }
}

TEST(SystemIo, CreatesNothingOverSomething) {
  const TemporaryDirectory directory;
  directory.write("there", "kept");
  ASSERT_EQ(::symlink("/nowhere/at/all", (directory / "link").c_str()), 0);
  ASSERT_EQ(::symlink((directory / "there").c_str(), (directory / "alias").c_str()), 0);
  for (const char* name : {"there", "link", "alias"})
    EXPECT_THAT(failure([&] { system_io().create(directory / name); }).what(), HasSubstr("exists already"));
  EXPECT_EQ(directory.read("there"), "kept");
  EXPECT_EQ(failure([&] { system_io().create(directory / "no" / "such"); }).kind(), ErrorKind::kIo);
}

TEST(SystemIo, FilesDoNotLeakIntoChildren) {
  const TemporaryDirectory directory;
  const auto file = system_io().create(directory / "f");
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone) != directory / "f") continue;
    std::ifstream flags("/proc/self/fdinfo/" + entry.path().filename().string());
    std::string word;
    while (flags >> word && word != "flags:") {
    }
    long value = 0;
    flags >> std::oct >> value;
    EXPECT_NE(value & 02000000, 0) << "O_CLOEXEC";
    return;
  }
  FAIL() << "the descriptor was not found";
}

TEST(SystemIo, MapsWholeFilesAndLetsPagesGo) {
  const TemporaryDirectory directory;
  const std::string content(3 * 65536 + 5, 'x');
  const auto mapping = system_io().open(directory.write("f", content))->map();
  ASSERT_EQ(mapping->bytes().size(), content.size());
  for (const std::uint64_t offset : {0ull, 1ull, 4096ull, 65536ull, 196613ull, ~0ull})
    for (const std::uint64_t size : {0ull, 1ull, 4096ull, 100000ull, ~0ull}) mapping->release(offset, size);
  EXPECT_EQ(std::memcmp(mapping->bytes().data(), content.data(), content.size()),
            0);  // read again from the file
  EXPECT_TRUE(system_io().open(directory.write("empty", ""))->map()->bytes().empty());
}

// Against a count for each block.
TEST(HeldBlocks, TakesAndGivesWhatNobodyElseHolds) {
  constexpr std::uint64_t kBlocks = 40;
  HeldBlocks held;
  std::vector<int> holders(kBlocks, 0);
  std::vector<BlockRange> taken;
  std::mt19937 random(1);
  const auto blocks_with = [&](const BlockRange& range, int count) {
    std::vector<std::uint64_t> found;
    for (std::uint64_t b = range.first; b < range.last; ++b)
      if (holders[b] == count) found.push_back(b);
    return found;
  };
  const auto listed = [](const std::vector<BlockRange>& ranges) {
    std::vector<std::uint64_t> found;
    for (const BlockRange& range : ranges)
      for (std::uint64_t b = range.first; b < range.last; ++b) found.push_back(b);
    return found;
  };
  for (int step = 0; step < 4000; ++step) {
    if (taken.size() < 12 && random() % 2 == 0) {
      const std::uint64_t a = random() % (kBlocks + 1), b = random() % (kBlocks + 1);
      const BlockRange range = {std::min(a, b), std::max(a, b)};
      ASSERT_EQ(listed(held.take(range)), blocks_with(range, 0));
      for (std::uint64_t i = range.first; i < range.last; ++i) ++holders[i];
      taken.push_back(range);
    } else if (!taken.empty()) {
      const std::size_t which = random() % taken.size();
      const BlockRange range = taken[which];
      taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(which));
      ASSERT_EQ(listed(held.give(range)), blocks_with(range, 1));
      for (std::uint64_t i = range.first; i < range.last; ++i) --holders[i];
    }
  }
  for (const BlockRange& range : taken) held.give(range);
  EXPECT_TRUE(held.none());
}

class Leases : public ::testing::TestWithParam<Reading> {
 protected:
  // Skips where the disk of temporary files cannot be read past the page cache.
  std::unique_ptr<Mapping> map(const Path& path) {
    try {
      return io_->open(path)->map();
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kUnsupported) return nullptr;
      throw;
    }
  }
  std::uint64_t read() const { return io_->counters().bytes_read; }

  const TemporaryDirectory directory_;
  const std::unique_ptr<Io> io_ = make_system_io(GetParam());
};

TEST_P(Leases, EveryBlockIsReadAndCountedOnceWhileItIsHeld) {
  std::string content(5 * kIoBlock + 100, 'x');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7 + i / 256);
  const auto mapping = map(directory_.write("f", content));
  if (!mapping) GTEST_SKIP() << "the disk of temporary files cannot be read past the page cache";
  EXPECT_EQ(mapping->in_memory(), GetParam() == Reading::kDirect);
  const auto same = [&](std::uint64_t offset, std::uint64_t size) {
    return std::memcmp(mapping->bytes().data() + offset, content.data() + offset, size) == 0;
  };
  EXPECT_EQ(read(), 0u);
  {
    const Lease first = mapping->lease(kIoBlock + 10, 10);
    EXPECT_EQ(read(), kIoBlock);
    const Lease more = mapping->lease(kIoBlock - 1, 2 * kIoBlock);
    EXPECT_EQ(read(), 3 * kIoBlock);
    EXPECT_TRUE(same(0, 3 * kIoBlock));
    mapping->release(0, content.size());  // a hint changes nothing of what is held
    EXPECT_TRUE(same(0, 3 * kIoBlock));
  }
  {
    const Lease again = mapping->lease(0, 1);
    EXPECT_EQ(read(), 4 * kIoBlock);
    Lease end = mapping->lease(5 * kIoBlock, ~0ull);
    EXPECT_EQ(read(), 5 * kIoBlock);
    EXPECT_TRUE(same(5 * kIoBlock, 100));
    end = Lease();
    const Lease none = mapping->lease(content.size(), 5);
    EXPECT_EQ(read(), 5 * kIoBlock);
  }
  if (GetParam() == Reading::kDirect) {
    EXPECT_DEATH(std::fputc(std::to_integer<int>(mapping->bytes()[0]), stderr), "")
        << "nothing is held, and it was read";
  }
}

TEST_P(Leases, ReadsAtAnyPlaceAreCountedInBlocksPastTheCache) {
  std::string content(3 * kIoBlock + 7, 'x');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 11 + i / 256);
  const Path path = directory_.write("f", content);
  if (!map(path)) GTEST_SKIP() << "the disk of temporary files cannot be read past the page cache";
  EXPECT_EQ(read_text(*io_, path), content);
  const std::uint64_t before = read();
  const auto file = io_->open(path);
  std::string part(kIoBlock, '\0');
  file->read_at(kIoBlock + 1, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, content.substr(kIoBlock + 1, kIoBlock));
  EXPECT_EQ(read() - before, GetParam() == Reading::kDirect ? 2 * kIoBlock : kIoBlock);
  const Error error = failure([&] { file->read_at(3 * kIoBlock, std::as_writable_bytes(std::span(part))); });
  EXPECT_EQ(error.kind(), ErrorKind::kIo);
  EXPECT_THAT(error.what(), HasSubstr("ends at byte"));
}

// A file that was cut behind its mapping's back.
TEST_P(Leases, WhatCannotBeReadIsAnErrorAndIsNotHeld) {
  if (GetParam() == Reading::kCached) GTEST_SKIP() << "the page cache reads when bytes are looked at";
  const Path path = directory_.write("f", std::string(4 * kIoBlock, 'x'));
  const auto mapping = map(path);
  if (!mapping) GTEST_SKIP() << "the disk of temporary files cannot be read past the page cache";
  std::filesystem::resize_file(path, kIoBlock);
  EXPECT_EQ(failure([&] { mapping->lease(0, 3 * kIoBlock); }).kind(), ErrorKind::kIo);
  const Lease left = mapping->lease(0, kIoBlock);
  EXPECT_EQ(mapping->bytes()[0], std::byte{'x'});
}

INSTANTIATE_TEST_SUITE_P(Readings, Leases, ::testing::Values(Reading::kCached, Reading::kDirect),
                         [](const auto& of) { return of.param == Reading::kCached ? "Cached" : "Direct"; });

TEST(SystemIo, Directories) {
  const TemporaryDirectory directory;
  system_io().make_directory(directory / "a" / "b");
  system_io().make_directory(directory / "a" / "b");
  directory.write("a/z", "");
  directory.write("a/.hidden", "");
  EXPECT_THAT(system_io().list(directory / "a"), ElementsAre(".hidden", "b", "z"));
  EXPECT_TRUE(system_io().is_directory(directory / "a"));
  EXPECT_FALSE(system_io().is_directory(directory / "a" / "z"));
  EXPECT_THAT(failure([&] { system_io().make_directory(directory / "a" / "z" / "c"); }).what(),
              HasSubstr("is not a directory"));
  EXPECT_EQ(failure([&] { system_io().list(directory / "none"); }).kind(), ErrorKind::kBadInput);
  EXPECT_EQ(failure([&] { system_io().remove(directory / "a"); }).kind(), ErrorKind::kIo);
  system_io().remove(directory / "a" / "z");
  system_io().remove(directory / "a" / "z");
  EXPECT_FALSE(system_io().exists(directory / "a" / "z"));
  system_io().sync_directory(directory.path());
  EXPECT_GT(system_io().free_bytes(directory / "not" / "yet"), 0u);
}

TEST(SystemIo, ADiskWithoutRoomIsFoundBeforeAnythingIsWritten) {
  const TemporaryDirectory directory;
  const auto file = system_io().create(directory / "f");
  const std::uint64_t impossible = std::uint64_t{1}
                                   << 55;  // 32 PiB: more than any disk here has, or the file system takes
  const Error error = failure([&] { file->reserve(impossible); });
  EXPECT_EQ(error.kind(), ErrorKind::kIo);
  EXPECT_THAT(error.what(), HasSubstr(std::to_string(impossible)));
}

TEST(ReadText, ChecksTheLimit) {
  const TemporaryDirectory directory;
  const Path path = directory.write("f", "12345");
  EXPECT_EQ(read_text(system_io(), path), "12345");
  EXPECT_EQ(read_text(system_io(), path, 5), "12345");
  EXPECT_THAT(failure([&] { read_text(system_io(), path, 4); }).what(),
              HasSubstr("has 5 bytes, more than the 4"));
}

TEST(WriteTextAtomically, SyncsBeforeItRenames) {
  const TemporaryDirectory directory;
  directory.write("f", "old");
  CountingIo io;
  write_text_atomically(io, directory / "f", "new");
  EXPECT_EQ(directory.read("f"), "new");
  const std::string partial = "f.partial-" + std::to_string(::getpid());
  EXPECT_THAT(io.calls(),
              ElementsAre("remove " + partial, "create " + partial, "write " + partial, "sync " + partial,
                          "rename f", "sync_directory " + directory.path().filename().string()));
}

TEST(WriteTextAtomically, AFailureAtAnyCallLeavesTheOldOrTheNewAndNothingElse) {
  int call = 0;
  for (;; ++call) {
    const TemporaryDirectory directory;
    directory.write("f", "old");
    FailingIo io(call);
    bool failed = false;
    try {
      write_text_atomically(io, directory / "f", "new");
    } catch (const Error& error) {
      failed = true;
      EXPECT_THAT(error.what(), HasSubstr("No space left on device"));
    }
    EXPECT_THAT(system_io().list(directory.path()), ElementsAre("f")) << "call " << call;
    const std::string content = directory.read("f");
    EXPECT_TRUE(content == "new" || (failed && content == "old")) << content;
    if (!io.failed()) break;
  }
  EXPECT_EQ(call, 6);  // remove, create, write, sync, rename, sync_directory
}

TEST(FailingIo, CutsFilesShort) {
  const TemporaryDirectory directory;
  const Path path = directory.write("f.bin", "0123456789");
  FailingIo io(-1);
  io.cut_short(".bin", 4);
  EXPECT_EQ(read_text(io, path), "0123");
  EXPECT_EQ(io.open(path)->map()->bytes().size(), 4u);
  std::byte into[5];
  EXPECT_THROW(io.open(path)->read_at(0, into), Error);
}

}  // namespace
}  // namespace llmq
