// quantize --portable: one digest whatever the processor has beyond AVX2. LLMQ_CPU_ISA plays the smaller
// machine; what of the program looks at the processor by itself (kernels on host memory) follows it as well.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/program.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> portable_job(const std::string& output, const std::vector<std::string>& settings,
                                      bool portable) {
  std::vector<std::string> arguments = {"quantize", "--model", tinystories(), "--output", output, "--json"};
  for (const char* setting : {"scheme=w4a16_g32_asym", "calibration={samples: 4, sequence_length: 128}"})
    arguments.insert(arguments.end(), {"--set", setting});
  for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
  if (portable) arguments.push_back("--portable");
  return arguments;
}

bool has_level(const Scratch& scratch, const std::string& level) {
  return run_llmq(portable_job(scratch / ("probe_" + level), {"method=rtn"}, false),
                  {"LLMQ_CPU_ISA=" + level})
             .exit_code == 0;
}

std::string digest(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return outcome.json().at("digest").as_string();
}

TEST(Portable, OneDigestAtEveryLevelOfTheProcessor) {
  const Scratch scratch;
  if (!has_level(scratch, "avx2")) GTEST_SKIP() << "this processor has no AVX2";
  const std::vector<std::vector<std::string>> jobs = {
      {"method=awq"},
      {"method=gptq"},
      {"method=[smoothquant, gptq]", "scheme=w8a8", "smoothquant.alpha=search"},
      {"method=awq", "target_bits=5.5", "mixed.samples=2"}};
  int number = 0;
  for (const std::vector<std::string>& settings : jobs) {
    const auto run = [&](const std::vector<std::string>& environment) {
      return digest(
          run_llmq(portable_job(scratch / ("q" + std::to_string(number++)), settings, true), environment));
    };
    const std::string best = run({"LLMQ_CPU_ISA="});
    EXPECT_EQ(run({"LLMQ_CPU_ISA=avx2"}), best) << settings.front();
    EXPECT_EQ(run({"LLMQ_CPU_ISA=avx512"}), best) << settings.front();
  }
}

// The one above could not fail if these were equal.
TEST(Portable, WithoutItTheDigestIsThatOfTheLevel) {
  const Scratch scratch;
  if (!has_level(scratch, "avx512")) GTEST_SKIP() << "this processor has no AVX-512";
  const auto run = [&](const std::string& level) {
    return digest(run_llmq(portable_job(scratch / level, {"method=awq"}, false), {"LLMQ_CPU_ISA=" + level}));
  };
  EXPECT_NE(run("avx2"), run("avx512"));
}

TEST(Portable, IsInTheRecipeAndInTheManifest) {
  const Scratch scratch;
  if (!has_level(scratch, "avx2")) GTEST_SKIP() << "this processor has no AVX2";
  ASSERT_EQ(run_llmq(portable_job(scratch / "q", {"method=rtn", "portable=true"}, false)).exit_code, 0);
  const Json manifest = Json::parse(read_file(scratch / "q/manifest.json"), "manifest.json");
  const Json& build = manifest.at("predicate").at("buildDefinition");
  EXPECT_TRUE(build.at("externalParameters").at("recipe").at("portable").as_bool());
  EXPECT_EQ(build.at("internalParameters").at("backend").as_string(), "cpu avx2");
  EXPECT_EQ(run_llmq({"verify", scratch / "q", "--rebuild"}).exit_code, 0);
  EXPECT_EQ(run_llmq(portable_job(scratch / "q", {"method=rtn"}, true)).json().at("status").as_string(),
            "unchanged")
      << "the flag and the key are one job";
  const Outcome elsewhere = run_llmq({"quantize", "--method", "rtn", "--model", tinystories(), "--output",
                                      scratch / "r", "--portable", "--device", "reference"});
  EXPECT_EQ(elsewhere.exit_code, 2);
  EXPECT_THAT(elsewhere.err, HasSubstr("reference"));
}

}  // namespace
}  // namespace llmq::testing
