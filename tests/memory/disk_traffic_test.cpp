// What a run reads and writes: what the plan announced, as the Io layer counted it and as the kernel did.
//
// Past the page cache (--direct-io) every byte that the program reads of its model is one that the kernel
// reads from the disk, so that /proc/PID/io and the program's own count must agree. Blocks are 4 KiB: two
// tensors, or two bands of one, may share one.
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/json.h"
#include "io/checkpoint.h"
#include "memory/synthetic_checkpoint.h"
#include "memory/watched_program.h"
#include "support/temporary_directory.h"

namespace llmq::testing {
namespace {

constexpr double kShared = 0.002;  // of what is announced: blocks that are announced twice and read once
constexpr std::uint64_t kSmall =
    2'000'000;  // the output's tokenizer, journal, manifest and report; pages of the program

// One checkpoint for all tests, old enough for its digests to be remembered within a run.
const std::string& medium_checkpoint() {
  static const TemporaryDirectory directory;
  static std::string path;
  if (path.empty()) {
    path = (directory / "model").string();
    write_synthetic_checkpoint(system_io(), path, synthetic_shape("medium-qwen3"), 1, 30'000'000);
    std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  }
  return path;
}

struct ProgramRun {
  Watched watched;
  std::string text;
  Json json() const { return Json::parse(text.substr(std::min(text.find('{'), text.size())), "output"); }
  double at(const char* key) const { return json().at(key).as_double(); }
  // A token that comes again soon is not read again, so that this pass may read less than was announced.
  double embedding_rows() const {
    double bytes = 0;
    const Json document = json();
    for (const Json& pass : document.at("reads").items())
      if (pass.at("what").as_string().ends_with("embedding rows")) bytes += pass.at("bytes").as_double();
    return bytes;
  }
  void expect_as_announced() const {
    const double planned = at("planned_bytes_read"), read = at("bytes_read");
    EXPECT_LE(read, planned);
    EXPECT_GE(read, (planned - embedding_rows()) * (1 - kShared));
    EXPECT_GE(at("bytes_written"), at("planned_bytes_written"));
    EXPECT_LE(at("bytes_written"), at("planned_bytes_written") + kSmall);
  }
};

// What one fault of a mapped page reads: its neighbours, too.
std::uint64_t read_around(const std::string& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) return 0;
  std::ifstream setting("/sys/class/bdi/" + std::to_string(major(status.st_dev)) + ":" +
                        std::to_string(minor(status.st_dev)) + "/read_ahead_kb");
  std::uint64_t kilobytes = 128;
  setting >> kilobytes;
  return kilobytes << 10;
}

ProgramRun run_on(const std::string& model, const std::string& method, const std::string& output,
                  const std::vector<std::string>& more = {}) {
  const TemporaryDirectory scratch;
  const bool gguf = output.ends_with(".gguf");
  std::vector<std::string> command = {LLMQ_PROGRAM, "quantize",
                                      "--json",     "--quiet",
                                      "--threads",  "2",
                                      "--model",    model,
                                      "--output",   output,
                                      "--method",   method,
                                      "--set",      "calibration.samples=2",
                                      "--set",      "calibration.sequence_length=128",
                                      "--set",      gguf ? "format=gguf" : "awq.grid=4"};
  if (more.empty() || !more.back().starts_with("mixed.schemes"))  // which leave nothing to say of a scheme
    command.insert(command.end(), {"--set", gguf ? "scheme=q4_0" : "scheme=w4a16_g64_asym"});
  command.insert(command.end(), more.begin(), more.end());
  ProgramRun run;
  run.watched = run_watched(command, 0, (scratch / "out").string(), {"LLMQ_DIGEST_CACHE="});
  run.text = scratch.read("out");
  return run;
}

ProgramRun run(const std::string& method, const std::string& output,
               const std::vector<std::string>& more = {}) {
  return run_on(medium_checkpoint(), method, output, more);
}

std::string why_not_direct(const std::string& directory) {
  struct statfs system {};
  if (::statfs(directory.c_str(), &system) != 0) return "its file system says nothing of itself";
  if (system.f_type == TMPFS_MAGIC) return "temporary files lie in memory, where nothing is read from a disk";
  try {
    make_system_io(Reading::kDirect)->open(directory + "/config.json");
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

struct TrafficJob {
  std::string name, method, ending;  // of the output
  std::vector<std::string> more = {};
  friend void PrintTo(const TrafficJob& job, std::ostream* out) { *out << job.name; }
};

// A file's name is part of its digest: the same in another directory.
std::string place(const TemporaryDirectory& directory, const std::string& part, const std::string& ending) {
  std::filesystem::create_directory(directory / part);
  return (directory / part / ("out" + ending)).string();
}

class DiskTraffic : public ::testing::TestWithParam<TrafficJob> {};

TEST_P(DiskTraffic, IsWhatWasAnnounced) {
  const TemporaryDirectory output;
  const auto& [name, method, ending, more] = GetParam();
  // The page cache has the program and its libraries after it, too.
  const ProgramRun cached = run(method, place(output, "cached", ending), more);
  ASSERT_EQ(cached.watched.exit_code, 0) << cached.text;
  cached.expect_as_announced();

  if (const std::string why = why_not_direct(medium_checkpoint()); !why.empty()) GTEST_SKIP() << why;
  ProgramRun direct;
  double read = 0, most = 0;
  std::vector<std::string> directly = more;
  directly.emplace_back("--direct-io");
  // A kernel short of memory drops the program's own pages, and reads ahead of those it brings back without a
  // fault to count. What the program asks for is the same every time, so that the run with the least is the
  // one to look at.
  for (int attempt = 0; attempt < 3; ++attempt) {
    direct = run(method, place(output, "direct" + std::to_string(attempt), ending), directly);
    ASSERT_EQ(direct.watched.exit_code, 0) << direct.text;
    EXPECT_EQ(direct.json().at("digest").as_string(), cached.json().at("digest").as_string());
    direct.expect_as_announced();
    if (direct.watched.disk_read == 0 && direct.watched.disk_written == 0)
      GTEST_SKIP() << "the kernel's counters of another process cannot be read here";
    // and its libraries
    const auto program = static_cast<double>(direct.watched.major_faults * read_around(LLMQ_PROGRAM));
    RecordProperty("read_of_the_program_at_most", std::to_string(program));
    read = static_cast<double>(direct.watched.disk_read);
    most = direct.at("planned_bytes_read") * 1.02 + program + kSmall;
    if (read <= most) break;
  }
  const auto written = static_cast<double>(direct.watched.disk_written);
  RecordProperty("read_over_counted", std::to_string(read / direct.at("bytes_read")));
  EXPECT_GE(read, direct.at("bytes_read"));
  EXPECT_LE(read, most);
  const double all_written = direct.at("bytes_written") + direct.at("scratch_bytes_written");
  RecordProperty("written_over_counted", std::to_string(written / all_written));
  EXPECT_GE(written, all_written);
  EXPECT_LE(written, all_written * 1.02 + kSmall);
}

INSTANTIATE_TEST_SUITE_P(
    Methods, DiskTraffic,
    ::testing::Values(TrafficJob{"rtn", "rtn", ""},
                      TrafficJob{"shared_scales", "rtn", "", {"--set", "scheme=nvfp4a16"}},
                      TrafficJob{"awq", "awq", ""}, TrafficJob{"awq_gptq", "awq,gptq", ""},
                      TrafficJob{"gguf", "rtn", ".gguf"}, TrafficJob{"gguf_imatrix", "imatrix", ".gguf"}),
    [](const auto& of) { return of.param.name; });

// Most tensors are small enough to be kept, and share blocks with their neighbours: each end is announced
// twice.
TEST(DiskTrafficOfASmallModel, IsWhatWasAnnounced) {
  constexpr double kTensors = 20;
  const TemporaryDirectory output;
  struct SmallJob {
    std::string name, method;
    std::vector<std::string> more;
  };
  const std::string schemes = "mixed.schemes=[w4a16_g64_asym,nvfp4a16,fp8]";
  for (const auto& [method, of, more] :
       {SmallJob{"rtn", "rtn", {}}, SmallJob{"gptq", "gptq", {}},
        SmallJob{"bits", "rtn", {"--target-bits", "5"}},
        SmallJob{"schemes", "awq,gptq", {"--target-bits", "4.6", "--set", schemes}}}) {
    const ProgramRun found =
        run_on(LLMQ_SOURCE_DIR "/tests/models/tinystories-656k", of, (output / method).string(), more);
    ASSERT_EQ(found.watched.exit_code, 0) << found.text;
    const double planned = found.at("planned_bytes_read"), read = found.at("bytes_read"),
                 written = found.at("bytes_written");
    EXPECT_LE(read, planned) << method;
    EXPECT_GE(read, planned - found.embedding_rows() -
                        kTensors * kIoBlock * static_cast<double>(found.json().at("reads").items().size()))
        << method;
    EXPECT_GE(written, found.at("planned_bytes_written")) << method;
    EXPECT_LE(written, found.at("planned_bytes_written") * 1.05) << method;
  }
}

TEST(DirectIo, AGgufIsReadThroughTheCache) {
  const TemporaryDirectory output;
  const std::string model = (output / "model.gguf").string(), again = (output / "again.gguf").string();
  ASSERT_EQ(run("rtn", model).watched.exit_code, 0);
  const ProgramRun cached = run_on(model, "imatrix", again);
  ASSERT_EQ(cached.watched.exit_code, 0) << cached.text;
  cached.expect_as_announced();
  const ProgramRun direct = run_on(model, "rtn", again, {"--direct-io", "--overwrite"});
  EXPECT_EQ(direct.watched.exit_code, 2) << direct.text;
  EXPECT_NE(direct.text.find("page cache"), std::string::npos) << direct.text;
}

// What is held of the checkpoint is in the plan when it is this process's memory.
TEST(DirectIo, MemoryPastThePageCacheIsPlanned) {
  if (const std::string why = why_not_direct(medium_checkpoint()); !why.empty()) GTEST_SKIP() << why;
  const TemporaryDirectory output;
  for (const auto& [name, method, ending, more] :
       {TrafficJob{"rtn", "rtn", ""}, TrafficJob{"gptq", "gptq", ""},
        TrafficJob{"gguf", "imatrix", ".gguf"}}) {
    const ProgramRun found = run(method, (output / (name + ending)).string(), {"--direct-io"});
    ASSERT_EQ(found.watched.exit_code, 0) << found.text;
    const double planned = found.at("planned_peak_bytes");
    EXPECT_LE(static_cast<double>(found.watched.peak_bytes), planned) << name;
    // Nothing may be ahead where reading is slower than what comes after it.
    EXPECT_GE(static_cast<double>(found.watched.peak_bytes + Checkpoint::kReadAheadBytes), planned * 0.8)
        << name;
  }
}

}  // namespace
}  // namespace llmq::testing
