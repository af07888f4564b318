// bench on the small trained model: every field of the contract, files beside it, refusals. No figure is judged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "cli/program.h"

namespace llmq::testing {
namespace {

using ::testing::HasSubstr;

Outcome bench(std::vector<std::string> more) {
  more.insert(more.begin(), {"bench", tinystories()});
  return run_llmq(more);
}

TEST(Bench, HasEveryFieldOfTheContract) {
  const Outcome outcome = bench({"--json", "--runs", "1", "--new-tokens", "4", "--prompt-tokens", "20"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = outcome.json();
  EXPECT_EQ(json.at("schema").as_string(), "llmq.bench/1");
  const Json& machine = json.at("machine");
  for (const char* key : {"cpu", "isa", "threads", "read_bandwidth_gbps", "peak_gflops", "gpu", "peaks"})
    EXPECT_NE(machine.find(key), nullptr) << key;
  EXPECT_GT(machine.at("read_bandwidth_gbps").as_double(), 0);
  EXPECT_GT(machine.at("peak_gflops").as_double(), 0);
  ASSERT_EQ(json.at("rows").items().size(), 1u);
  const Json& row = json.at("rows").items()[0];
  for (const char* key :
       {"config", "batch", "prompt_tokens", "new_tokens", "ttft_p50_ms", "ttft_p95_ms", "itl_p50_ms",
        "itl_p95_ms", "tokens_per_second", "prefill_tokens_per_second", "peak_memory_bytes",
        "bytes_per_token", "bandwidth_fraction", "cost_per_million_tokens"})
    EXPECT_NE(row.find(key), nullptr) << key;
  EXPECT_EQ(row.at("prompt_tokens").as_integer(), 20);
  EXPECT_EQ(row.at("new_tokens").as_integer(), 4);
  EXPECT_TRUE(row.at("cost_per_million_tokens").is_null()) << "nobody gave a price";
}

TEST(Bench, ThroughputTakesEveryBatchThatIsNamed) {
  const Scratch scratch;
  const std::string csv = scratch / "speed.csv", html = scratch / "speed.html";
  const Outcome outcome =
      bench({"--suite", "throughput", "--batch", "1,3", "--runs", "1", "--new-tokens", "3", "--prompt-tokens",
             "9", "--price-per-hour", "2", "--csv", csv, "--html", html, "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = outcome.json();
  ASSERT_EQ(json.at("rows").items().size(), 2u);
  const Json& row = json.at("rows").items()[1];
  EXPECT_EQ(row.at("batch").as_integer(), 3);
  EXPECT_DOUBLE_EQ(row.at("cost_per_million_tokens").as_double(),
                   2 / 3600. / row.at("tokens_per_second").as_double() * 1e6);
  std::istringstream lines(read_file(csv));
  std::vector<std::string> found;
  for (std::string line; std::getline(lines, line);) found.push_back(line);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_THAT(found[0], HasSubstr("config,suite,compute,batch,prompt_tokens"));
  EXPECT_THAT(found[2], HasSubstr("throughput,bfloat16,3,9,3,1,"));
  EXPECT_THAT(read_file(html), HasSubstr("<td>3</td>"));
}

TEST(Bench, WhatIsNotThereIsRefusedInWords) {
  const auto refused = [](std::vector<std::string> words, const char* hint) {
    const Outcome outcome = bench(std::move(words));
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(hint));
  };
  refused({"--suite", "serve"}, "is not part of this version");
  refused({"--suite", "matrix"}, "is not part of this version");
  refused({"--suite", "everything"}, "is not known");
  refused({"--endpoint", "http://127.0.0.1:8000"}, "--endpoint");
  refused({"--batch", "0"}, "--batch");
  refused({"--prompt-tokens", "510", "--new-tokens", "4"}, "512 positions");
  refused({"--new-tokens", "1"}, "two new tokens");
}

}  // namespace
}  // namespace llmq::testing
