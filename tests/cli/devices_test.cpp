// `quantize --devices`: the digest of one device, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <random>

#include "cli/program.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> device_job(const std::string& method, const std::string& output,
                                    const std::string& samples, const std::string& length,
                                    const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {"quantize",
                                    "--method",
                                    method,
                                    "--model",
                                    tinystories(),
                                    "--output",
                                    output,
                                    "--device",
                                    "cpu",
                                    "--set",
                                    "calibration.samples=" + samples,
                                    "--set",
                                    "calibration.sequence_length=" + length,
                                    "--json"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string digest_of(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return outcome.exit_code == 0 ? outcome.json().at("digest").as_string() : outcome.err;
}

// Three chunks: of 4,096 tokens, which are what is summed at once, and of 4,000, which are not.
TEST(Devices, TheDigestIsThatOfOne) {
  const Scratch scratch;
  const struct {
    std::string method, samples, length, devices;
  } cases[] = {{"rtn", "2", "64", "0,1"},
               {"awq", "36", "256", "0,1"},
               {"gptq", "90", "100", "0,1,2"},
               {"smoothquant", "36", "256", "0,1,2"}};
  for (const auto& c : cases) {
    const std::string one =
        digest_of(run_llmq(device_job(c.method, scratch / (c.method + "-one"), c.samples, c.length)));
    EXPECT_EQ(digest_of(run_llmq(device_job(c.method, scratch / (c.method + "-more"), c.samples, c.length,
                                            {"--devices", c.devices}))),
              one)
        << c.method;
  }
}

TEST(Devices, AKilledRunGoesOnWithAnotherNumberOfThem) {
  const Scratch scratch;
  const auto on = [&](const std::string& output, const std::vector<std::string>& devices) {
    return device_job("awq", scratch / output, "36", "256", devices);
  };
  const Outcome whole = run_llmq(on("whole", {}));
  const std::string digest = digest_of(whole);
  const double seconds = whole.json().at("seconds").as_double();
  std::mt19937 random(7);
  bool resumed = false;
  for (int i = 0; i < 20 && !resumed; ++i) {  // until a kill has met a run between its two blocks
    std::filesystem::remove_all(scratch / "killed");
    std::filesystem::remove_all(scratch / "killed.unfinished");
    run_llmq_until(seconds * std::uniform_real_distribution(0.4, 1.6)(random), SIGKILL,
                   on("killed", {"--devices", "0,1"}));
    const Outcome rest = run_llmq(on("killed", {"--devices", "0,1,2"}));
    ASSERT_EQ(digest_of(rest), digest);
    const Json document = rest.json();
    resumed = document.at("status").as_string() == "done" && document.at("resumed_blocks").as_integer() > 0;
  }
  EXPECT_TRUE(resumed);
}

TEST(Devices, ThePlanNamesThemAndBadListsAreRefused) {
  const Scratch scratch;
  const Outcome plan =
      run_llmq(device_job("awq", scratch / "q", "8", "64", {"--devices", "1,0", "--dry-run"}));
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_EQ(plan.json().at("devices").items().size(), 2u);
  EXPECT_GT(plan.json().at("device_bytes").as_integer(), 0);
  const struct {
    std::vector<std::string> words;
    std::string sentence;
  } cases[] = {{{"--devices", ""}, "is given without a value"},
               {{"--devices", "0,"}, "is no number of a device"},
               {{"--devices", "0,x"}, "'x' of '0,x' is no number of a device"},
               {{"--devices", "-1"}, "is no number of a device"},
               {{"--devices", "1,1"}, "device 1 stands twice"},
               {{"--devices", "0,99"}, "there is no device 99"},
               {{"--devices", "0,1", "--device", "reference"}, "--device reference is one device"},
               {{"--devices", "0,1", "--set", "format=gguf", "--set", "scheme=q4_0"},
                "a GGUF output is made on one device"}};
  for (const auto& c : cases) {
    std::vector<std::string> words = device_job("awq", scratch / "q", "8", "64", c.words);
    // the one that device_job() gives
    if (c.words.size() == 4 && c.words[2] == "--device") words.erase(words.begin() + 7, words.begin() + 9);
    const Outcome refused = run_llmq(words);
    EXPECT_EQ(refused.exit_code, 2) << refused.err;
    EXPECT_THAT(refused.out + refused.err, HasSubstr(c.sentence));
  }
}

}  // namespace
}  // namespace llmq::testing
