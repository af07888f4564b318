// bench on the small trained model: every field of the contract, files beside it, refusals. No figure is
// judged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
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
  EXPECT_THAT(read_file(html), HasSubstr("<td><bdi>3</bdi></td>"));
}

TEST(Bench, AServerUnderLoad) {
  const Scratch scratch;
  const std::string csv = scratch / "load.csv", html = scratch / "load.html", saved = scratch / "vllm.json";
  const Outcome outcome = bench({"--suite",
                                 "serve",
                                 "--clients",
                                 "2,4",
                                 "--rate",
                                 "inf,100",
                                 "--requests",
                                 "12",
                                 "--prompt-tokens",
                                 "40",
                                 "--new-tokens",
                                 "8",
                                 "--shared-prefix",
                                 "0.5",
                                 "--num-draft-tokens",
                                 "2",
                                 "--draft",
                                 std::string(LLMQ_SOURCE_DIR) + "/tests/models/tinystories-draft",
                                 "--price-per-hour",
                                 "2",
                                 "--csv",
                                 csv,
                                 "--html",
                                 html,
                                 "--save-result",
                                 saved,
                                 "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = outcome.json();
  EXPECT_EQ(json.at("schema").as_string(), "llmq.bench/1");
  std::istringstream lines(read_file(saved));
  std::size_t rows_saved = 0;
  for (std::string line; std::getline(lines, line); ++rows_saved)
    EXPECT_EQ(Json::parse(line, saved).at("output_throughput").as_double(),
              json.at("rows").items().at(rows_saved).at("tokens_per_second").as_double());
  EXPECT_EQ(rows_saved, 4u);
  EXPECT_GT(json.at("machine").at("read_bandwidth_gbps").as_double(), 0);
  ASSERT_EQ(json.at("rows").items().size(), 4u);
  for (const Json& row : json.at("rows").items()) {
    for (const char* name : {"ttft", "itl", "tpot"}) {
      const auto figure = [&](const char* rank) { return row.at(std::string(name) + rank).as_double(); };
      EXPECT_LE(figure("_p50_ms"), figure("_p95_ms")) << name;
      EXPECT_LE(figure("_p95_ms"), figure("_p99_ms")) << name;
    }
    EXPECT_GT(row.at("ttft_p50_ms").as_double(), 0);
    EXPECT_EQ(row.at("requests").as_integer(), 12);
    EXPECT_EQ(row.at("failed").as_integer(), 0);
    EXPECT_EQ(row.at("short_answers").as_integer(), 0);
    EXPECT_GT(row.at("prompt_tokens").as_double(), 10);
    EXPECT_DOUBLE_EQ(row.at("new_tokens").as_double(),
                     json.at("rows").items()[0].at("new_tokens").as_double())
        << "the same mix in every row";
    EXPECT_NEAR(row.at("tokens_per_second").as_double() * row.at("seconds").as_double(),
                12 * row.at("new_tokens").as_double(), 1e-6);
    EXPECT_DOUBLE_EQ(row.at("cost_per_million_tokens").as_double(),
                     2 / 3600. / row.at("tokens_per_second").as_double() * 1e6);
    EXPECT_GT(row.at("peak_memory_bytes").as_integer(), 1'000'000);
    EXPECT_GT(row.at("prefix_hit_share").as_double(), 0) << "some begin alike";
    EXPECT_GT(row.at("acceptance_rate").as_double(), 0);
    EXPECT_LT(row.at("acceptance_rate").as_double(), 1);
    EXPECT_TRUE(row.at("errors").items().empty());
  }
  EXPECT_EQ(json.at("rows").items()[1].at("rate").as_double(), 100);
  EXPECT_TRUE(json.at("rows").items()[0].at("rate").is_null());
  EXPECT_THAT(read_file(csv), HasSubstr("config,suite,compute,endpoint,batch,batching,rate,requests,failed"));
  EXPECT_THAT(read_file(html),
              HasSubstr("<td><bdi>4</bdi></td><td><bdi>continuous</bdi></td><td><bdi>100</bdi></td>"
                        "<td><bdi>12</bdi></td><td><bdi>0</bdi></td>"));
}

TEST(Bench, AStaticBatchStandsBesideContinuousOnes) {
  const Outcome outcome =
      bench({"--suite", "serve", "--clients", "4", "--batching", "continuous,static", "--answer-lengths",
             "long-tail", "--requests", "12", "--prompt-tokens", "8", "--new-tokens", "10", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = outcome.json();
  const std::vector<Json>& rows = json.at("rows").items();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].at("batching").as_string(), "continuous");
  EXPECT_EQ(rows[1].at("batching").as_string(), "static");
  EXPECT_EQ(rows[1].at("failed").as_integer(), 0);
  EXPECT_DOUBLE_EQ(rows[0].at("new_tokens").as_double(), rows[1].at("new_tokens").as_double())
      << "the same requests";
}

TEST(Bench, TheMatrixMeasuresFiveConfigurations) {
  const Scratch scratch;
  const std::string quantized = scratch / "w8", csv = scratch / "matrix.csv", html = scratch / "matrix.html";
  const Outcome made = run_llmq({"quantize", "--method", "rtn", "--model", tinystories(), "--output",
                                 quantized, "--set", "scheme=w8a16_g64_sym"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const Outcome outcome = bench({"--suite",
                                 "matrix",
                                 "--quantized",
                                 quantized,
                                 "--batch",
                                 "4,1",
                                 "--requests",
                                 "2",
                                 "--prompt-tokens",
                                 "80",
                                 "--new-tokens",
                                 "8",
                                 "--num-draft-tokens",
                                 "2",
                                 "--draft",
                                 std::string(LLMQ_SOURCE_DIR) + "/tests/models/tinystories-draft",
                                 "--max-windows",
                                 "2",
                                 "--price-per-hour",
                                 "2",
                                 "--ttft-target",
                                 "0.001,1e6",
                                 "--quality-tolerance",
                                 "1000",
                                 "--csv",
                                 csv,
                                 "--html",
                                 html,
                                 "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = outcome.json();
  EXPECT_EQ(json.at("schema").as_string(), "llmq.bench/1");
  EXPECT_EQ(json.at("quantized").as_string(), quantized);
  const std::vector<Json>& rows = json.at("rows").items();
  ASSERT_EQ(rows.size(), 10u);
  const char* names[] = {"baseline", "quantized", "speculation", "prefix_cache", "all"};
  for (std::size_t i = 0; i < 10; ++i) {
    const Json& row = rows[i];
    EXPECT_EQ(row.at("config").as_string(), names[i / 2]);
    EXPECT_EQ(row.at("batch").as_integer(), i % 2 == 0 ? 1 : 4) << "batches ascend";
    EXPECT_EQ(row.at("failed").as_integer(), 0);
    EXPECT_EQ(row.at("requests").as_integer(), 2 * row.at("batch").as_integer());
    EXPECT_DOUBLE_EQ(row.at("new_tokens").as_double(), rows[i % 2].at("new_tokens").as_double())
        << "the same requests in every configuration";
    EXPECT_GT(row.at("tokens_per_second").as_double(), 0);
    EXPECT_GT(row.at("peak_memory_bytes").as_integer(), 1'000'000);
    EXPECT_DOUBLE_EQ(row.at("cost_per_million_tokens").as_double(),
                     2 / 3600. / row.at("tokens_per_second").as_double() * 1e6);
    EXPECT_EQ(row.at("acceptance_rate").is_null(), i / 2 != 2 && i / 2 != 4) << names[i / 2];
    const bool caches = i / 2 >= 3;
    EXPECT_EQ(row.at("prefix_caching").as_bool(), caches);
    if (!caches) {
      EXPECT_EQ(row.at("prefix_hit_share").as_double(), 0) << names[i / 2];
    }
    if (caches && i % 2 == 1) {
      EXPECT_GT(row.at("prefix_hit_share").as_double(), 0) << names[i / 2];
    }
    EXPECT_EQ(row.at("ppl").as_double(), rows[i < 2 ? 0 : 2].at("ppl").as_double());
  }
  EXPECT_NE(rows[0].at("ppl").as_double(), rows[2].at("ppl").as_double());
  EXPECT_EQ(json.at("speculation").at("gains").items().size(), 2u);
  const std::vector<Json>& decisions = json.at("decisions").items();
  ASSERT_EQ(decisions.size(), 2u);
  EXPECT_TRUE(decisions[0].at("config").is_null()) << "no first token comes in a microsecond";
  double best = 0;
  for (const Json& row : rows) best = std::max(best, row.at("tokens_per_second").as_double());
  EXPECT_EQ(decisions[1].at("tokens_per_second").as_double(), best);
  EXPECT_THAT(read_file(csv),
              HasSubstr("config,suite,compute,model,scheme,draft,prefix_caching,ppl,ppl_stderr,batch"));
  EXPECT_THAT(read_file(html), HasSubstr("nothing measured here does"));
}

TEST(Bench, AMatrixWithoutAQuantizedModelSaysSo) {
  const Outcome outcome = bench({"--suite", "matrix", "--batch", "1", "--requests", "2", "--prompt-tokens",
                                 "20", "--new-tokens", "4", "--max-windows", "1"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("all was not measured: no quantized model was given (--quantized)."));
  EXPECT_THAT(outcome.out, HasSubstr("baseline"));
}

TEST(Bench, ALoadCanBeInterrupted) {
  const Outcome outcome =
      run_llmq_until(2.5, SIGINT, {"bench", tinystories(), "--suite", "serve", "--rate", "0.05"});
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
}

TEST(Bench, WhatIsNotThereIsRefusedInWords) {
  const auto refused = [](std::vector<std::string> words, const char* hint) {
    const Outcome outcome = bench(std::move(words));
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(hint));
  };
  refused({"--suite", "matrix", "--clients", "4"}, "suite matrix does not use it");
  refused({"--suite", "matrix", "--runs", "4"}, "suite matrix does not use it");
  refused({"--suite", "matrix", "--save-result", "x"}, "suite matrix does not use it");
  refused({"--suite", "serve", "--quantized", "x"}, "suite serve does not use it");
  refused({"--suite", "matrix", "--quantized", "no/such/model"}, "no/such/model");
  refused({"--suite", "matrix", "--draft", "ngram"}, "--quantized");
  refused({"--suite", "matrix", "--ttft-target", "0"}, "--ttft-target");
  refused({"--suite", "matrix", "--quality-tolerance", "-1"}, "--quality-tolerance");
  refused({"--suite", "matrix", "--max-windows", "0"}, "--max-windows");
  refused({"--suite", "matrix", "--endpoint", "http://127.0.0.1:8000"}, "--endpoint");
  refused({"--suite", "serve", "--batching", "static", "--rate", "4"}, "--rate");
  refused({"--suite", "serve", "--batching", "dynamic"}, "--batching");
  refused({"--suite", "serve", "--answer-lengths", "short"}, "--answer-lengths");
  refused({"--suite", "everything"}, "is not known");
  refused({"--suite", "latency", "--endpoint", "http://127.0.0.1:8000"}, "--endpoint");
  refused({"--endpoint", "https://127.0.0.1:8000"}, "TLS is not spoken");
  refused({"--endpoint", "http://no-such-host.invalid:1"}, "no host 'no-such-host.invalid'");
  refused({"--clients", "4"}, "suite latency does not use it");
  refused({"--suite", "serve", "--runs", "4"}, "suite serve does not use it");
  refused({"--suite", "serve", "--clients", "0"}, "--clients");
  refused({"--suite", "serve", "--rate", "1,fast"}, "--rate");
  refused({"--suite", "serve", "--rate", "0"}, "--rate");
  refused({"--suite", "serve", "--shared-prefix", "1.5"}, "--shared-prefix");
  refused({"--suite", "serve", "--prompt-tokens", "300", "--new-tokens", "100"},
          "600 tokens, the server's context 512");
  refused({"--batch", "0"}, "--batch");
  refused({"--prompt-tokens", "510", "--new-tokens", "4"}, "512 positions");
  refused({"--new-tokens", "1"}, "two new tokens");
}

}  // namespace
}  // namespace llmq::testing
