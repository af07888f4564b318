// Every call to the disk that the built program makes, refused, failed, cut short, or its last: what it then
// says, what it leaves, and that the same command afterwards ends with the same bytes.
//
// A site is what a call does to which file. Of a site that is called more than a few times (writes into a
// shard) the first two, the last and some between are taken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <random>
#include <stdexcept>
#include <thread>

#include "io_faults/job_on_disk.h"

namespace llmq::testing {
namespace {

namespace fs = std::filesystem;

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const Words kRounding = {"quantize", "--quiet", "--threads", "2",       "--method", "rtn",
                         "--model",  "@in",     "--output",  "@work/q", "--set",    "scheme=w4a16_g32_asym"};
const Words kGptq = {"quantize",  "--quiet",
                     "--threads", "2",
                     "--method",  "gptq",
                     "--model",   "@in",
                     "--output",  "@work/q",
                     "--set",     "scheme=w4a16_g32_sym",
                     "--set",     "calibration.samples=80",
                     "--set",     "calibration.sequence_length=64"};
const Words kGguf = {"quantize",
                     "--quiet",
                     "--threads",
                     "2",
                     "--method",
                     "imatrix",
                     "--model",
                     "@in",
                     "--output",
                     "@work/q.gguf",
                     "--set",
                     "format=gguf",
                     "--set",
                     "scheme=q8_0",
                     "--set",
                     "calibration={text: [" LLMQ_SOURCE_DIR
                     "/tests/fixtures/stories/calibration.txt], samples: 1, sequence_length: 64}"};
const Words kConversion = {"convert", "--quiet", "@in", "@work/q", "--to", "safetensors", "--dtype", "f32"};
const Words kGgufConversion = {"convert",      "--quiet", "--threads", "2",       "@in",
                               "@work/q.gguf", "--to",    "gguf",      "--dtype", "q8_0"};
const Words kVersioned = {"--set", "output.versioned=true", "--set", "output.keep=2"};

// A job, what is there before it, and what it ends with.
struct Scenario {
  explicit Scenario(const Words& words, const std::string& output = "q") : job(words, output) {}
  Scenario(const Scenario&) = delete;
  Scenario& operator=(const Scenario&) = delete;

  // Another job's run, of which the result is part of the start.
  void after(const Words& words, const std::string& fault = {}) {
    const FaultyRun run = job.run(words, fault);
    EXPECT_EQ(run.outcome.exit_code, fault.empty() ? 0 : 128 + SIGKILL) << run.outcome.err;
    job.keep_as_start();
  }

  // One run without faults.
  void settle() {
    std::this_thread::sleep_for(std::chrono::milliseconds(2100));  // younger files are hashed twice in a run
    before = job.found();
    const FaultyRun run = job.run();
    ASSERT_EQ(run.outcome.exit_code, 0) << run.outcome.err;
    calls = run.calls;
    digest = job.found();
    names = job.names();
    ASSERT_NE(digest, before);
    ASSERT_NE(digest, "torn");
  }

  // What looks finished is the earlier output or the new one, and the same command ends as one run does.
  void expect_recovers() {
    const std::string found = job.found();
    EXPECT_TRUE(found == before || found == digest) << "found " << found;
    const FaultyRun again = job.run();
    EXPECT_EQ(again.outcome.exit_code, 0) << again.outcome.err;
    EXPECT_EQ(job.found(), digest);
    EXPECT_EQ(job.names(), names);
  }

  JobOnDisk job;
  std::string before, digest;
  std::vector<DiskCall> calls;
  Words names;
};

// Which calls of a site: from 1.
std::vector<int> sampled(int count, std::mt19937& random) {
  std::vector<int> numbers = {1};
  if (count > 1) numbers.push_back(2);
  if (count > 3) numbers.push_back(3 + static_cast<int>(random() % static_cast<unsigned>(count - 3)));
  if (count > 2) numbers.push_back(count);
  return numbers;
}

std::vector<std::string> faults_of(const std::string& call) {
  static const std::map<std::string, std::vector<std::string>> kFaults = {
      {"write", {"ENOSPC", "EIO", "short", "ENOSPC+"}},
      {"read", {"EIO", "short"}},
      {"create", {"ENOSPC", "EIO"}},
      {"mkdir", {"ENOSPC", "EIO"}},
      {"reserve", {"ENOSPC"}},
      {"link", {"ENOSPC"}},
      {"sync", {"EIO", "ENOSPC", "EIO+"}},
      {"rename", {"EIO", "ENOSPC+"}}};
  const auto found = kFaults.find(call);
  return found == kFaults.end() ? std::vector<std::string>{"EIO"} : found->second;
}

std::string last_name(const std::string& file) { return file.substr(file.rfind('/') + 1); }

// One sentence: the program's name, the file or the directory it lies in, and why.
void expect_clear_sentence(const std::string& err, const std::string& file, const std::string& fault) {
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
  EXPECT_EQ(err.rfind("llmq: ", 0), 0u) << err;
  const std::string name = last_name(file).substr(0, last_name(file).find("PID"));
  const std::string directory = file.substr(0, file.rfind('/'));
  EXPECT_TRUE(err.find(name) != std::string::npos || err.find(directory) != std::string::npos)
      << err << "names neither " << name << " nor " << directory;
  const bool full = fault.rfind("ENOSPC", 0) == 0;
  EXPECT_TRUE(err.find(full ? "No space left" : "Input/output error") != std::string::npos ||
              (full && err.find("no room on the disk") != std::string::npos))
      << err;
}

// What may fail with a warning: finding and removing what is not needed any more, an old version among it.
// (work/q is synced for the new version, for `latest`, and for the old one.)
bool may_go_unnoticed(const DiskCall& site, int number) {
  return site.first == "remove" || site.first == "list" ||
         site == DiskCall{"rename", "work/q.unfinished/pruned"} ||
         (site == DiskCall{"sync", "work/q"} && number == 3);
}

// Fails every site; how many faults that were.
int fail_everywhere(Scenario& s, const std::function<bool(const DiskCall&)>& chosen = {}) {
  s.settle();
  std::map<DiskCall, int> sites;
  for (const DiskCall& call : s.calls)
    if (!chosen || chosen(call)) ++sites[call];
  std::mt19937 random(7);
  int faults = 0;
  for (const auto& [site, count] : sites)
    for (const int number : sampled(count, random))
      for (const std::string& how : faults_of(site.first)) {
        const std::string fault = how + " " + std::to_string(number) + " " + site.first + " " + site.second;
        SCOPED_TRACE(fault);
        s.job.begin();
        const FaultyRun run = s.job.run(fault);
        ++faults;
        EXPECT_TRUE(run.hit) << run.outcome.err;
        if (run.outcome.exit_code == 0) {
          EXPECT_TRUE(how == "short" || may_go_unnoticed(site, number)) << "went unnoticed";
          EXPECT_EQ(s.job.found(), s.digest);
        } else {
          EXPECT_EQ(run.outcome.exit_code, 1) << run.outcome.err;
          expect_clear_sentence(run.outcome.err, site.second, how);
        }
        s.expect_recovers();
        if (::testing::Test::HasFailure()) return faults;
      }
  std::printf("%d faults at %d sites of %d calls\n", faults, static_cast<int>(sites.size()),
              static_cast<int>(s.calls.size()));
  return faults;
}

// Which calls a program is killed at: all, or fewer of those that make an output, where another test has all
// of them and what differs is what becomes of an earlier output.
enum class Calls : std::uint8_t { kAll, kOfPublishing };
constexpr int kMaking = 80, kSomeOfMaking = 4;  // the first calls that change the disk; every fourth of them

// Kills the program before each call that changes the disk, and in the middle of writes; how many points that
// were.
int kill_everywhere(Scenario& s, Calls calls = Calls::kAll) {
  s.settle();
  int points = 0;
  const auto killed = [&](const std::string& fault) {
    SCOPED_TRACE(fault);
    s.job.begin();
    const FaultyRun run = s.job.run(fault);
    if (run.outcome.exit_code == 0) return false;
    ++points;
    EXPECT_EQ(run.outcome.exit_code, 128 + SIGKILL) << run.outcome.err;
    s.expect_recovers();
    return !::testing::Test::HasFailure();
  };
  const int step = calls == Calls::kAll ? 1 : kSomeOfMaking;
  for (int n = 1; killed("kill " + std::to_string(n) + " any *"); n += n <= kMaking ? step : 1) {
  }
  std::map<DiskCall, int> writes;
  for (const DiskCall& call : s.calls)
    if (call.first == "write" && calls == Calls::kAll) ++writes[call];
  std::mt19937 random(13);
  for (const auto& [site, count] : writes)
    for (const int number : sampled(count, random))
      if (!::testing::Test::HasFailure()) killed("torn " + std::to_string(number) + " write " + site.second);
  std::printf("%d kill points\n", points);
  return points;
}

std::function<bool(const DiskCall&)> only(const Words& calls, const std::string& file) {
  return [=](const DiskCall& call) {
    return call.second.find(file) != std::string::npos &&
           (calls.empty() || std::find(calls.begin(), calls.end(), call.first) != calls.end());
  };
}

struct Replacing : Scenario {
  Replacing() : Scenario(with(kRounding, {"--overwrite"})) {
    after(with(kRounding, {"--set", "scheme=w8a16_channel_sym"}));
  }
};
struct ReplacingAFile : Scenario {
  ReplacingAFile() : Scenario(with(kGgufConversion, {"--overwrite"}), "q.gguf") {
    Words earlier = kGgufConversion;
    earlier.back() = "q4_0";
    after(earlier);
  }
};

// Two versions are there, of which one is to go.
struct Versioned : Scenario {
  Versioned() : Scenario(with(kRounding, kVersioned)) {
    after(with(kRounding, with(kVersioned, {"--set", "scheme=w8a16_channel_sym"})));
    after(with(kRounding, with(kVersioned, {"--set", "scheme=w8a16_channel_asym"})));
  }
};

// One block is done, and the next is not.
struct InTheMiddle : Scenario {
  InTheMiddle() : Scenario(kRounding) { after(kRounding, "kill 3 write work/q.unfinished/journal"); }
};

TEST(DiskFaults, OfANewOutput) {
  Scenario s(kRounding);
  EXPECT_GT(fail_everywhere(s), 200);
}
TEST(DiskFaults, OfAnOutputThatReplacesAnother) {
  Replacing s;
  EXPECT_GT(fail_everywhere(s, only({"rename", "sync", "list", "open"}, "work")), 20);
}
TEST(DiskFaults, OfANewVersion) {
  Versioned s;
  EXPECT_GT(fail_everywhere(s, only({"rename", "sync", "list", "link", "mkdir"}, "work")), 20);
}
TEST(DiskFaults, OfARunThatGoesOn) {
  InTheMiddle s;
  EXPECT_GT(fail_everywhere(s, only({"open", "read", "map"}, "work/q.unfinished")), 20);
}
// With the smallest limit that the plan takes, and names: the residual stream is in a file then.
Words in_the_smallest_limit(const Words& words) {
  const std::string refusal = JobOnDisk(with(words, {"--memory-limit", "1MiB"})).run().outcome.err;
  const std::string marker = "--memory-limit ";
  const std::size_t limit = refusal.rfind(marker, refusal.find(" would do"));
  if (limit == std::string::npos) throw std::runtime_error("no limit in: " + refusal);
  const std::size_t from = limit + marker.size();
  return with(words, {"--memory-limit", refusal.substr(from, refusal.find(' ', from) - from)});
}
TEST(DiskFaults, OfActivationsInAFile) {
  Scenario s(in_the_smallest_limit(kGptq));
  EXPECT_GT(fail_everywhere(s,
                            [](const DiskCall& call) {
                              return call.second == "work/#" || call == DiskCall{"create", "work"};
                            }),
            10);
}
TEST(DiskFaults, OfAGguf) {
  Scenario s(kGguf, "q.gguf");
  EXPECT_GT(fail_everywhere(s, only({}, "work")), 60);
}
TEST(DiskFaults, OfAConversion) {
  Scenario s(kConversion);
  EXPECT_GT(fail_everywhere(s), 60);
}
TEST(DiskFaults, OfAConversionToAFileThatReplacesAnother) {
  ReplacingAFile s;
  EXPECT_GT(fail_everywhere(s), 60);
}
// Killed before its first block is written, and between its blocks: what was measured is not measured again.
TEST(Kills, WhatWasMeasuredForABudgetIsTakenUp) {
  Scenario s(with(kRounding, {"--target-bits", "5.5", "--set", "mixed.samples=2", "--json", "--set",
                              "calibration={samples: 2, sequence_length: 64}"}));
  s.settle();
  for (const int record : {1, 2, 3}) {
    SCOPED_TRACE(record);
    s.job.begin();
    const FaultyRun killed = s.job.run("kill " + std::to_string(record) + " write work/q.unfinished/journal");
    ASSERT_EQ(killed.outcome.exit_code, 128 + SIGKILL) << killed.outcome.err;
    const FaultyRun again = s.job.run();
    ASSERT_EQ(again.outcome.exit_code, 0) << again.outcome.err;
    const Json said = again.outcome.json();
    EXPECT_EQ(said.at("mixed").at("measured_before").as_bool(), record > 1) << "the first record holds it";
    EXPECT_EQ(said.at("resumed_blocks").as_integer(), record == 3 ? 1 : 0);
    EXPECT_EQ(s.job.found(), s.digest);
    EXPECT_EQ(s.job.names(), s.names);
  }
}
TEST(Kills, OfAGguf) {
  Scenario s(kGguf, "q.gguf");
  EXPECT_GT(kill_everywhere(s), 40);
}
TEST(Kills, OfAConversion) {
  Scenario s(kConversion);
  EXPECT_GT(kill_everywhere(s), 40);
}
TEST(Kills, OfAConversionToAFileThatReplacesAnother) {
  ReplacingAFile s;
  EXPECT_GT(kill_everywhere(s), 40);
}
// What was mapped and read so far is gone: the next page that is looked at has no file behind it.
TEST(DiskFaults, AModelThatIsCutShortWhileItIsReadIsNamed) {
  Scenario s(kRounding);
  s.settle();
  const fs::path model = fs::path(s.job.in()) / "model.safetensors", sound = model.string() + ".sound";
  fs::copy_file(model, sound);
  for (const bool json : {false, true}) {
    s.job.begin();
    const Words words = json ? with(kRounding, {"--json"}) : kRounding;
    const FaultyRun cut = s.job.run(words, "cut 2 write work/q.unfinished/journal");
    ASSERT_TRUE(cut.hit);
    EXPECT_EQ(cut.outcome.exit_code, 1) << cut.outcome.err;
    const std::string said = json ? cut.outcome.json().at("file").as_string() : cut.outcome.err;
    EXPECT_THAT(said, ::testing::HasSubstr(model.string())) << cut.outcome.err << cut.outcome.out;
    EXPECT_EQ(std::count(cut.outcome.err.begin(), cut.outcome.err.end(), '\n'), json ? 0 : 1)
        << cut.outcome.err;
    fs::copy_file(sound, model, fs::copy_options::overwrite_existing);
    const FaultyRun again = s.job.run(with(kRounding, {"--json"}));
    ASSERT_EQ(again.outcome.exit_code, 0) << again.outcome.err;
    EXPECT_EQ(s.job.found(), s.digest);
  }
}
TEST(Kills, OfANewOutput) {
  Scenario s(kRounding);
  EXPECT_GT(kill_everywhere(s), 100);
}
TEST(Kills, OfARunThatGoesOn) {
  InTheMiddle s;
  EXPECT_GT(kill_everywhere(s), 80);
}
TEST(Kills, OfAnOutputThatReplacesAnother) {
  Replacing s;
  EXPECT_GT(kill_everywhere(s, Calls::kOfPublishing), 30);
}
TEST(Kills, OfANewVersion) {
  Versioned s;
  EXPECT_GT(kill_everywhere(s, Calls::kOfPublishing), 30);
}
}  // namespace
}  // namespace llmq::testing
