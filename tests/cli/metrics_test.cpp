// The figures that a run leaves for dashboards agree with what it said, and are of the form their readers
// want.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <sstream>

#include "cli/program.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;

TEST(Metrics, AgreeWithTheRunsOwnDocument) {
  const Scratch scratch;
  write_file(scratch / "job.yaml",
             "version: 1\nmethod: rtn\nscheme: w2a16_g32_asym\nmodel: " + tinystories() + "\noutput: \"" +
                 (scratch / "q \\\" x") + "\"\nevaluate: {max_windows: 1, max_kl: 0.000001}\n");
  const Outcome outcome = run_llmq(
      {"quantize", "--recipe", scratch / "job.yaml", "--metrics-out", scratch / "deep/metrics", "--json"});
  ASSERT_EQ(outcome.exit_code, 3) << outcome.err;
  const Json said = outcome.json(),
             file = Json::parse(read_file(scratch / "deep/metrics/metrics.json"), "metrics.json");
  EXPECT_EQ(file.at("schema").as_string(), "llmq.metrics/1");
  EXPECT_EQ(file.at("params").at("digest"), said.at("digest"));
  const Json& numbers = file.at("metrics");
  EXPECT_EQ(numbers.at("quantize_output_bytes"), said.at("bytes_out"));
  EXPECT_EQ(numbers.at("quantize_kl_nats"), said.at("evaluation").at("against").at("kl_mean"));
  EXPECT_EQ(numbers.at("quantize_exit_code").as_integer(), 3);
  for (const Json::Member& member : numbers.members()) EXPECT_TRUE(member.second.is_number()) << member.first;

  // The text format: https://prometheus.io/docs/instrumenting/exposition_formats/
  std::istringstream lines(read_file(scratch / "deep/metrics/llmq.prom"));
  const std::regex comment("# (HELP [a-z0-9_]+ .+|TYPE [a-z0-9_]+ gauge)"),
      sample(R"re(llmq_[a-z0-9_]+\{([a-z_]+="(\\.|[^"\\])*",?)+\} [-+0-9.eE]+)re");
  std::string text;
  for (std::string line; std::getline(lines, line); text += line + "\n")
    EXPECT_TRUE(std::regex_match(line, line[0] == '#' ? comment : sample)) << line;
  EXPECT_THAT(text, HasSubstr("gate=\"max_kl\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("llmq_quantize_exit_code{output="));
  EXPECT_THAT(text, HasSubstr(said.at("digest").as_string()));
}

TEST(Metrics, OfAGguf) {
  const Scratch scratch;
  ASSERT_EQ(run_llmq({"quantize", "--method", "rtn", "--model", tinystories(), "--output", scratch / "m.gguf",
                      "--set", "format=gguf", "--set", "scheme=q8_0", "--metrics-out", scratch / "metrics"})
                .exit_code,
            0);
  const Json file = Json::parse(read_file(scratch / "metrics/metrics.json"), "metrics.json");
  EXPECT_EQ(file.at("params").at("format").as_string(), "gguf");
  EXPECT_GT(file.at("metrics").at("quantize_output_bytes").as_integer(), 100'000);
}

}  // namespace
}  // namespace llmq::testing
