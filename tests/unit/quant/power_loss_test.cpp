// Every prefix of what a run does to the disk, with what was not synced lost: resumable, or plainly
// unfinished.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "model/open_checkpoint.h"
#include "small_job.h"
#include "tests/support/failing_io.h"
#include "tests/support/power_loss.h"

namespace llmq::testing {
namespace {

using ::testing::ElementsAre;

constexpr const char* kAwqOfPowerLoss = "method: awq\nscheme: w4a16_g32_asym\nawq: {grid: 2, clip: false}\n";
constexpr const char* kRounding = "method: rtn\nscheme: w4a16_g32_asym\n";

struct DiskCase {
  std::string recipe;
  bool earlier = false;    // another output in the place, to be replaced
  bool versioned = false;  // with two versions there, of which one is to go
};

OutputTarget target_of(const DiskCase& of, const Path& directory) {
  OutputTarget target{directory / "out", of.earlier};
  target.versioned = of.versioned;
  target.keep = of.versioned ? 2 : 0;
  return target;
}

void write_earlier_ones(const DiskCase& of, const Path& directory, const Checkpoint& checkpoint) {
  if (of.earlier)
    SmallJob{"method: rtn\nscheme: w8a16_channel_sym\n", target_of({}, directory)}.run(system_io(),
                                                                                       checkpoint);
  if (!of.versioned) return;
  for (const char* recipe :
       {"method: rtn\nscheme: w8a16_channel_sym\n", "method: rtn\nscheme: w8a16_channel_asym\n"})
    SmallJob{recipe, target_of(of, directory)}.run(system_io(), checkpoint);
}

// The digest of what loaders find: at the output, or where `latest` leads.
std::string found_digest(const DiskCase& of, const Path& directory) {
  const Path output = of.versioned ? directory / "out" / "latest" : directory / "out";
  return system_io().exists(output / "config.json") ? output_digest(system_io(), output) : std::string();
}

// The journal is synced for the job, then for each of the two blocks, then for the publication.
std::int64_t blocks_recorded(const std::vector<DiskEvent>& events, std::size_t prefix) {
  std::int64_t synced = 0;
  for (std::size_t i = 0; i < prefix; ++i)
    synced += events[i].operation == "sync" && events[i].a.filename() == "journal";
  return std::clamp<std::int64_t>(synced - 1, 0, 2);
}

// After each prefix: what has the output's name is the earlier output or the new one, whole; and the same job
// then ends with the same bytes.
int lose_power_everywhere(const DiskCase& of) {
  const TemporaryDirectory models;
  const Checkpoint checkpoint = open_checkpoint(system_io(), write_tiny_checkpoint(models));
  const TemporaryDirectory disk;
  write_earlier_ones(of, disk.path(), checkpoint);
  const SimulatedDisk start(disk.path());
  const std::string earlier = found_digest(of, disk.path());
  RecordingIo io;
  const std::string digest = SmallJob{of.recipe, target_of(of, disk.path())}.run(io, checkpoint).digest;
  EXPECT_EQ(found_digest(of, disk.path()), digest);
  const auto survives = [&](std::size_t prefix, const unsigned* seed) {
    SCOPED_TRACE(
        fmt::format("power lost after {} of {} events, {}", prefix, io.events().size(),
                    seed == nullptr ? std::string("nothing unsynced left") : fmt::format("seed {}", *seed)));
    SimulatedDisk simulated = start;
    for (std::size_t i = 0; i < prefix; ++i) simulated.apply(io.events()[i]);
    const TemporaryDirectory after;
    const Path left = after / "left";
    simulated.leave(left, seed);
    const std::string found = found_digest(of, left);
    EXPECT_TRUE(found == earlier || found == digest) << found;
    const SmallJob::Result again = SmallJob({of.recipe, target_of(of, left)}).run(system_io(), checkpoint);
    EXPECT_EQ(again.digest, digest);
    EXPECT_EQ(found_digest(of, left), digest);
    if (seed == nullptr && !again.unchanged) {
      EXPECT_EQ(again.report.resumed_blocks, blocks_recorded(io.events(), prefix))
          << "what was recorded is there";
    }
    EXPECT_THAT(system_io().list(left), ElementsAre("out"));
    if (of.versioned) {
      EXPECT_EQ(versions_in(system_io(), left / "out").size(), 2u);
    }
  };
  for (std::size_t prefix = 0; prefix <= io.events().size() && !::testing::Test::HasFailure(); ++prefix) {
    survives(prefix, nullptr);
    const auto seed = static_cast<unsigned>(prefix);
    survives(prefix, &seed);
  }
  return static_cast<int>(io.events().size());
}

TEST(PowerLoss, OfANewOutput) { EXPECT_GT(lose_power_everywhere({kAwqOfPowerLoss}), 60); }
TEST(PowerLoss, OfAnOutputThatReplacesAnother) {
  EXPECT_GT(lose_power_everywhere({kRounding, true, false}), 60);
}
TEST(PowerLoss, OfANewVersion) { EXPECT_GT(lose_power_everywhere({kRounding, false, true}), 60); }

// Every call fails, once or from then on: always an error, never a torn output, and the same job ends well
// afterwards.
int fail_everywhere(const DiskCase& of, FailingIo::How how) {
  const TemporaryDirectory models;
  const Checkpoint checkpoint = open_checkpoint(system_io(), write_tiny_checkpoint(models));
  const TemporaryDirectory whole;
  const std::string digest =
      SmallJob({of.recipe, target_of({}, whole.path())}).run(system_io(), checkpoint).digest;
  for (int k = 0;; ++k) {
    SCOPED_TRACE(fmt::format("call {} fails", k));
    const TemporaryDirectory disk;
    write_earlier_ones(of, disk.path(), checkpoint);
    const std::string earlier = found_digest(of, disk.path());
    const SmallJob job{of.recipe, target_of(of, disk.path())};
    FailingIo io(k, how);
    try {
      job.run(io, checkpoint);
      EXPECT_EQ(found_digest(of, disk.path()), digest) << "no error, so it is done";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIo) << error.what();
      const std::string found = found_digest(of, disk.path());
      EXPECT_TRUE(found == earlier || found == digest) << found;
    }
    EXPECT_EQ(job.run(system_io(), checkpoint).digest, digest);
    EXPECT_EQ(found_digest(of, disk.path()), digest);
    if (!io.failed() || ::testing::Test::HasFailure()) return k;
  }
}

TEST(DiskFaults, OfANewOutput) {
  EXPECT_GT(fail_everywhere({kRounding}, FailingIo::How::kOnce), 60);
  EXPECT_GT(fail_everywhere({kRounding}, FailingIo::How::kFromThenOn), 60);
}
TEST(DiskFaults, OfAnOutputThatReplacesAnother) {
  EXPECT_GT(fail_everywhere({kRounding, true, false}, FailingIo::How::kOnce), 60);
}
TEST(DiskFaults, OfANewVersion) {
  EXPECT_GT(fail_everywhere({kRounding, false, true}, FailingIo::How::kOnce), 60);
}

}  // namespace
}  // namespace llmq::testing
