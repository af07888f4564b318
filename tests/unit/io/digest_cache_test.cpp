// Digests are those of sha256sum, and are remembered for files that have not changed, and for no others.
#include "io/digest_cache.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/error.h"
#include "tests/support/counting_io.h"
#include "tests/support/failing_io.h"
#include "tests/support/temporary_directory.h"

namespace llmq::testing {
namespace {

constexpr const char* kOfAbc =
    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";  // FIPS 180-4
constexpr const char* kOfNothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

// As if the files had been written ten seconds ago.
std::int64_t later(const Path& path) { return system_io().stamp(path).changed_ns + 10'000'000'000; }

TEST(FileSha256, IsThatOfTheWholeFile) {
  const TemporaryDirectory disk;
  EXPECT_EQ(file_sha256(system_io(), disk.write("abc", "abc")), kOfAbc);
  EXPECT_EQ(file_sha256(system_io(), disk.write("nothing", "")), kOfNothing);
  // Two pieces and a bit: printf 'a%.0s' {1..2097153} | sha256sum
  EXPECT_EQ(file_sha256(system_io(), disk.write("long", std::string((2u << 20) + 1, 'a'))),
            "16a429a1e5162fcf59e3079724763e9afafcef1e2c7f862571e9267b3d959113");
}

TEST(DigestCacheTest, ReadsAnUnchangedFileOnce) {
  const TemporaryDirectory disk;
  const Path file = disk.write("abc", "abc");
  CountingIo io;
  DigestCache cache(io, {}, [&] { return later(file); });
  EXPECT_EQ(cache.sha256(file), kOfAbc);
  EXPECT_EQ(cache.sha256(file), kOfAbc);
  EXPECT_EQ(io.count("read"), 1);
}

TEST(DigestCacheTest, ANextRunReadsNothing) {
  const TemporaryDirectory disk;
  const Path file = disk.write("abc", "abc"), store = disk / "cache/llmq/digests";
  DigestCache first(system_io(), store, [&] { return later(file); });
  first.sha256(file);
  first.save();
  CountingIo io;
  DigestCache second(io, store);
  const int loading = io.count("read");
  EXPECT_EQ(second.sha256(file), kOfAbc);
  EXPECT_EQ(io.count("read"), loading);
}

TEST(DigestCacheTest, AnyChangeIsSeen) {
  const TemporaryDirectory disk;
  const Path file = disk.write("abc", "abc");
  DigestCache cache(system_io(), {}, [&] { return later(file); });
  EXPECT_EQ(cache.sha256(file), kOfAbc);
  const std::int64_t written = system_io().stamp(file).modified_ns;
  const struct timespec before[2] = {{0, UTIME_OMIT}, {written / 1'000'000'000, written % 1'000'000'000}};
  disk.write("abc", "abd");                                    // of the same size
  ASSERT_EQ(utimensat(AT_FDCWD, file.c_str(), before, 0), 0);  // with its mtime put back: ctime tells
  EXPECT_NE(cache.sha256(file), kOfAbc);
}

TEST(DigestCacheTest, AFileThatWasJustWrittenIsNotRemembered) {
  const TemporaryDirectory disk;
  const Path file = disk.write("abc", "abc");
  CountingIo io;
  DigestCache cache(io, {}, [&] { return system_io().stamp(file).changed_ns + 1'999'999'999; });
  cache.sha256(file);
  cache.sha256(file);
  EXPECT_EQ(io.count("read"), 2);
}

TEST(DigestCacheTest, ADamagedStoreIsWorthNothingAndHarmsNothing) {
  const TemporaryDirectory disk;
  const Path file = disk.write("abc", "abc");
  const std::string wrong(64, '0');
  const FileStamp s = system_io().stamp(file);
  const std::string sound = std::to_string(s.device) + " " + std::to_string(s.inode) + " " +
                            std::to_string(s.size) + " " + std::to_string(s.modified_ns) + " " +
                            std::to_string(s.changed_ns) + " ";
  ASSERT_EQ(DigestCache(system_io(), disk.write("good", sound + wrong + "\n")).sha256(file), wrong)
      << "the lines below are broken in one place each";
  for (const std::string& text : {std::string("\n\n"), "x" + sound + wrong, sound + wrong.substr(1),
                                  sound + wrong + "0", sound + " " + wrong, sound + std::string(64, 'G'),
                                  "-1 " + sound + wrong, std::string(100, '\0'), std::string("9 9 9")})
    EXPECT_EQ(DigestCache(system_io(), disk.write("store", text)).sha256(file), kOfAbc) << text;
}

TEST(DigestCacheTest, ADiskThatFailsIsNoErrorOfTheStore) {
  const TemporaryDirectory disk;
  const Path file = disk.write("abc", "abc");
  for (int k = 0; k < 40; ++k) {
    FailingIo io(k);
    DigestCache cache(io, disk / "store", [&] { return later(file); });
    try {
      EXPECT_EQ(cache.sha256(file), kOfAbc);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIo);
    }
    cache.save();
  }
}

}  // namespace
}  // namespace llmq::testing
