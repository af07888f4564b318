// The built program, killed at any time and started again; versions; a job that is done already.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>

#include "cli/program.h"

namespace llmq::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::vector<std::string> short_job(const std::string& output, const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"quantize",
                                        "--method",
                                        "awq",
                                        "--model",
                                        tinystories(),
                                        "--output",
                                        output,
                                        "--set",
                                        "scheme=w4a16_g32_asym",
                                        "--set",
                                        "calibration.samples=8",
                                        "--set",
                                        "calibration.sequence_length=256",
                                        "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

double seconds_of_one_run(const std::string& output, std::string& digest) {
  const auto start = std::chrono::steady_clock::now();
  const Outcome whole = run_llmq(short_job(output));
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  digest = whole.json().at("digest").as_string();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(Resume, KilledAtAnyTimeTheProgramEndsWithTheSameBytes) {
  const Scratch scratch;
  std::string digest;
  const double once = seconds_of_one_run(scratch / "whole", digest);
  std::mt19937 random(11);
  int killed = 0;
  // Halved where a run ends before it is killed: the first may have had a busier machine than those here.
  double within = once * 1.1;
  for (int round = 0; round < 6; ++round) {
    const std::string output = scratch / ("q" + std::to_string(round));
    for (int attempt = 0; attempt < 3; ++attempt) {
      const double until = within * static_cast<double>(random()) / 0x1p32;
      const Outcome outcome = run_llmq_until(until, SIGKILL, short_job(output));
      EXPECT_TRUE(outcome.exit_code == 0 || outcome.exit_code == 128 + SIGKILL) << outcome.err;
      if (outcome.exit_code == 0) {
        within /= 2;
        break;
      }
      ++killed;
    }
    const Outcome last = run_llmq(short_job(output, {"--threads", round % 2 == 0 ? "1" : "3"}));
    ASSERT_EQ(last.exit_code, 0) << last.err;
    EXPECT_EQ(last.json().at("digest").as_string(), digest);
    EXPECT_FALSE(fs::exists(output + ".unfinished"));
  }
  EXPECT_GT(killed, 1);
}

TEST(Resume, AnInterruptedRunSaysHowToGoOn) {
  const Scratch scratch;
  std::string digest;
  const double once = seconds_of_one_run(scratch / "whole", digest);
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::string output = scratch / ("q" + std::to_string(signal));
    const Outcome stopped = run_llmq_until(once / 2, signal, short_job(output));
    if (stopped.exit_code == 0) continue;  // a machine that was slow before and is fast now
    EXPECT_EQ(stopped.exit_code, 128 + signal) << stopped.err;
    if (stopped.out.empty()) continue;  // before it watched for signals
    EXPECT_EQ(stopped.json().at("status").as_string(), "interrupted");
    EXPECT_THAT(stopped.json().at("resume").as_string(), HasSubstr("llmq quantize --method awq"));
    EXPECT_FALSE(fs::exists(output));
    const Outcome last = run_llmq(short_job(output, {"--resume"}));
    ASSERT_EQ(last.exit_code, 0) << last.err;
    EXPECT_EQ(last.json().at("digest").as_string(), digest);
  }
}

TEST(Resume, AJobThatIsDoneIsNotDoneAgain) {
  const Scratch scratch;
  const Outcome first = run_llmq(short_job(scratch / "q"));
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const auto written = fs::last_write_time(scratch / "q/model.safetensors");
  const Outcome second = run_llmq(short_job(scratch / "q", {"--threads", "1"}));
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(second.json().at("status").as_string(), "unchanged");
  EXPECT_EQ(second.json().at("digest").as_string(), first.json().at("digest").as_string());
  EXPECT_EQ(fs::last_write_time(scratch / "q/model.safetensors"), written);

  const Outcome other = run_llmq(short_job(scratch / "q", {"--set", "awq.grid=3"}));
  EXPECT_EQ(other.exit_code, 2) << "another job does not take its place unasked";

  {
    std::fstream file(scratch / "q/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(500'000);
    file.put('x');
  }
  const Outcome third = run_llmq(short_job(scratch / "q", {"--overwrite"}));
  ASSERT_EQ(third.exit_code, 0) << third.err;
  EXPECT_EQ(third.json().at("status").as_string(), "done") << "a changed file is not an unchanged job";
  EXPECT_EQ(third.json().at("digest").as_string(), first.json().at("digest").as_string());
}

TEST(Resume, AGgufGoesOnAndIsNotDoneAgain) {
  const Scratch scratch;
  const auto gguf = [&](const std::string& name) {
    return std::vector<std::string>{"quantize",
                                    "--method",
                                    "imatrix",
                                    "--model",
                                    tinystories(),
                                    "--output",
                                    scratch / name,
                                    "--set",
                                    "format=gguf",
                                    "--set",
                                    "scheme=q8_0",
                                    "--set",
                                    "calibration={samples: 8, sequence_length: 256}",
                                    "--json"};
  };
  const auto start = std::chrono::steady_clock::now();
  const Outcome whole = run_llmq(gguf("whole.gguf"));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const double once = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (const double share : {0.4, 0.6, 0.8, 0.9, 1.0}) {
    const std::string name = "q" + std::to_string(static_cast<int>(10 * share)) + ".gguf";
    const Outcome killed = run_llmq_until(once * share, SIGKILL, gguf(name));
    EXPECT_TRUE(killed.exit_code == 0 || killed.exit_code == 128 + SIGKILL) << killed.err;
    const Outcome last = run_llmq(gguf(name));
    ASSERT_EQ(last.exit_code, 0) << last.err;
    EXPECT_TRUE(read_file(scratch / name) == read_file(scratch / "whole.gguf")) << share;
    EXPECT_FALSE(fs::exists(scratch / (name + ".unfinished")));
    EXPECT_EQ(run_llmq({"verify", scratch / name}).exit_code, 0);
    EXPECT_EQ(run_llmq(gguf(name)).json().at("status").as_string(), "unchanged");
  }
  EXPECT_EQ(run_llmq({"verify", scratch / "whole.gguf", "--rebuild"}).exit_code, 0);
  const Json report = Json::parse(read_file(scratch / "whole.gguf.report.json"), "report");
  EXPECT_GE(report.at("memory").at("samples").items().size(), 3u) << "importance by block, tensors, the end";
}

TEST(Resume, AGateThatWasMissedIsMissedStill) {
  const Scratch scratch;
  const std::vector<std::string> gated = {"--set", "evaluate={max_windows: 1, max_kl: 0.0000001}"};
  const Outcome first = run_llmq(short_job(scratch / "q", gated)),
                second = run_llmq(short_job(scratch / "q", gated));
  EXPECT_EQ(first.exit_code, 3) << first.err;
  EXPECT_EQ(second.exit_code, 3) << second.err;
  EXPECT_EQ(second.json().at("status").as_string(), "unchanged");
}

TEST(Versions, ArePublishedKeptAndRolledBackTo) {
  const Scratch scratch;
  const auto quantize = [&](const std::string& grid, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"--set", "output.versioned=true", "--set", "output.keep=2",
                                          "--set", "awq.grid=" + grid};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run_llmq(short_job(scratch / "q", arguments));
    EXPECT_TRUE(outcome.exit_code == 0 || outcome.exit_code == 3) << outcome.err;
    return outcome.json();
  };
  const auto latest = [&] { return fs::read_symlink(scratch / "q/latest").string(); };
  const Json first = quantize("2");
  const std::string one = first.at("version").as_string();
  EXPECT_EQ(one, "v0001-" + first.at("digest").as_string().substr(7, 8));
  EXPECT_EQ(latest(), one);
  EXPECT_EQ(run_llmq({"inspect", scratch / "q/latest"}).exit_code, 0);
  EXPECT_EQ(quantize("2").at("status").as_string(), "unchanged");

  const std::string two = quantize("3").at("version").as_string();
  EXPECT_EQ(latest(), two);
  const Outcome back = run_llmq({"publish", scratch / "q", "--to", "v0001", "--json"});
  EXPECT_EQ(back.exit_code, 0) << back.err;
  EXPECT_EQ(back.json().at("latest").as_string(), one);
  EXPECT_EQ(latest(), one);
  EXPECT_EQ(quantize("3").at("status").as_string(), "unchanged") << "which does not undo a roll back";
  EXPECT_EQ(latest(), one);

  // What `latest` names is not pruned, even where it is the oldest; what misses a gate does not become
  // latest.
  const std::string three =
      quantize("4", {"--set", "evaluate={max_windows: 1, max_kl: 0.0000001}"}).at("version").as_string();
  EXPECT_EQ(latest(), one);
  EXPECT_TRUE(fs::exists(scratch / ("q/" + one)));
  EXPECT_TRUE(fs::exists(scratch / ("q/" + three)));
  EXPECT_TRUE(fs::exists(scratch / ("q/" + two))) << "two more than `latest` are kept";
  EXPECT_EQ(run_llmq({"publish", scratch / "q", "--to", "v0009"}).exit_code, 2);
  EXPECT_EQ(run_llmq({"publish", scratch / "q", "--to", "../x"}).exit_code, 2);
}

TEST(Versions, ASecondJobIsToldWhoIsAtWork) {
  const Scratch scratch;
  fs::create_directory(scratch / "q.unfinished");
  // A lock that nobody holds, as a killed run leaves it, is taken over.
  write_file(scratch / "q.unfinished/lock", "process 1 on nowhere since 1970\n");
  EXPECT_EQ(run_llmq(short_job(scratch / "q")).exit_code, 0);
}

}  // namespace
}  // namespace llmq::testing
