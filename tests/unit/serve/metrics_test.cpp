// Metrics as Prometheus reads them; keys.
#include "serve/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <set>
#include <sstream>

#include "base/error.h"
#include "serve/api.h"
#include "serve/api_keys.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string after_some_work(bool vllm) {
  Metrics metrics({"a\"b", vllm, 2});
  ServingStatistics s;
  s.running = 2;
  s.kv_blocks_used = 3;
  s.kv_blocks_total = 12;
  s.kv_bytes = 73728;
  s.snapshots = 3;
  s.snapshots_total = 6;
  s.snapshots_made = 4;
  s.state_bytes = 1000;
  s.kv_places = 480;
  s.kv_places_unused = 12;
  s.generated_tokens = 7;
  s.finished_stop = 4;
  s.draft_rounds = 5;
  s.drafted = 20;
  s.accepted = 15;
  s.accepted_at = {8, 7};
  metrics.engine(s);
  metrics.first_token(0.05);
  metrics.more_tokens(0.03, 3);
  metrics.finished(1, 10, 7);
  metrics.http("/health", 200);
  return metrics.text({});
}

TEST(Metrics, FiguresStandUnderTheirNames) {
  const std::string text = after_some_work(false);
  for (const char* line :
       {"llmq_num_requests_running{model_name=\"a\\\"b\"} 2\n",
        "llmq_kv_cache_usage_perc{model_name=\"a\\\"b\"} 0.25\n",
        "llmq_kv_cache_bytes{model_name=\"a\\\"b\"} 73728\n",
        "llmq_state_snapshots{model_name=\"a\\\"b\"} 3\n",
        "llmq_state_snapshots_room{model_name=\"a\\\"b\"} 6\n",
        "llmq_state_snapshot_bytes{model_name=\"a\\\"b\"} 4000\n",
        "llmq_kv_places_total{model_name=\"a\\\"b\"} 480\n",
        "llmq_kv_places_unused_total{model_name=\"a\\\"b\"} 12\n",
        "llmq_generation_tokens_total{model_name=\"a\\\"b\"} 7\n",
        "llmq_request_success_total{model_name=\"a\\\"b\",finished_reason=\"stop\"} 4\n",
        "llmq_spec_decode_num_accepted_tokens_total{model_name=\"a\\\"b\"} 15\n",
        "llmq_spec_decode_num_accepted_tokens_per_pos_total{model_name=\"a\\\"b\",position=\"1\"} 7\n",
        "llmq_time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.04\"} 0\n",
        "llmq_time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.06\"} 1\n",
        "llmq_time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"2560\"} 1\n",
        "llmq_inter_token_latency_seconds_count{model_name=\"a\\\"b\"} 3\n",
        "llmq_inter_token_latency_seconds_bucket{model_name=\"a\\\"b\",le=\"0.01\"} 3\n",
        "llmq_http_requests_total{model_name=\"a\\\"b\",path=\"/health\",status=\"200\"} 1\n"})
    EXPECT_THAT(text, HasSubstr(line));
  EXPECT_THAT(text, Not(HasSubstr("vllm:")));
}

TEST(Metrics, VllmsNamesOnRequest) {
  const std::string text = after_some_work(true);
  EXPECT_THAT(text, HasSubstr("vllm:num_requests_running{model_name=\"a\\\"b\",engine=\"0\"} 2\n"));
  EXPECT_THAT(text,
              HasSubstr("vllm:e2e_request_latency_seconds_sum{model_name=\"a\\\"b\",engine=\"0\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("llmq_num_requests_running"));
}

// The model server protocol (docs/proposals/003-model-server-protocol of the Gateway API Inference Extension)
// and production-stack's engine_stats.py.
TEST(Metrics, RoutersFindWhatTheyAskFor) {
  ServingStatistics s;
  s.kv_blocks_used = 3;
  s.kv_blocks_total = 12;
  s.kv_block_size = 16;
  s.prefix_queries = 40;
  s.prefix_hits = 8;
  s.adapters = {{"a", 2, 1, 9, 0}, {"b", 1, 0, 9, 0}, {"c", 0, 0, 9, 0}, {"team/d", 1, 1, 9, 0}};
  const auto text_of = [&](bool vllm, std::size_t max_loras) {
    Metrics metrics({"m", vllm, max_loras});
    metrics.engine(s);
    return metrics.text({});
  };
  const std::string text = text_of(true, 4);
  for (const char* line : {"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"12\",engine=\"0\"} 1\n",
                           "vllm:gpu_cache_usage_perc{model_name=\"m\",engine=\"0\"} 0.25\n",
                           "vllm:gpu_prefix_cache_queries_total{model_name=\"m\",engine=\"0\"} 40\n",
                           "vllm:gpu_prefix_cache_hits_total{model_name=\"m\",engine=\"0\"} 8\n"})
    EXPECT_THAT(text, HasSubstr(line));
  const std::string lora =
      "vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"a,team/"
      "d\",waiting_lora_adapters=\"a,b\"} ";
  const std::size_t found = text.find(lora);
  ASSERT_NE(found, std::string::npos) << text;
  EXPECT_NEAR(std::stod(text.substr(found + lora.size())), static_cast<double>(std::time(nullptr)), 5);
  EXPECT_THAT(text_of(true, 0), Not(HasSubstr("lora_requests_info"))) << "no adapter can be loaded";
  EXPECT_THAT(text_of(false, 4), Not(HasSubstr("vllm:")));
}

// Each family once, its samples behind its head: what Prometheus insists on.
TEST(Metrics, IsTheExpositionFormat) {
  std::istringstream lines(after_some_work(true));
  std::set<std::string> families;
  std::string line, family;
  while (std::getline(lines, line)) {
    if (line.starts_with("# HELP ")) continue;
    if (line.starts_with("# TYPE ")) {
      family = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(families.insert(family).second) << family;
      continue;
    }
    EXPECT_TRUE(line.starts_with(family)) << line;
    EXPECT_NO_THROW(std::stod(line.substr(line.rfind(' ') + 1))) << line;
  }
  EXPECT_GT(families.size(), 40u);
}

TEST(ApiKeys, OnlyWholeKeysOfTheFileArePassed) {
  const ApiKeys keys = ApiKeys::parse("# ours\n0123456789abcdef\n\n  fedcba9876543210  \r\n", "keys");
  const auto first = keys.tenant("Bearer 0123456789abcdef"), second = keys.tenant("bearer fedcba9876543210");
  ASSERT_TRUE(first && second);
  EXPECT_NE(*first, *second) << "each key is a tenant of its own";
  EXPECT_THAT(*first, Not(HasSubstr("0123456789abcdef")));
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer 0123456789abcde", "Bearer 0123456789abcdeff",
                            "0123456789abcdef", "Basic 0123456789abcdef", "Bearer # ours"})
    EXPECT_FALSE(keys.tenant(wrong)) << wrong;
  EXPECT_EQ(ApiKeys().tenant("anything"), "");
}

TEST(ApiKeys, FilesAreChecked) {
  const auto message = [](const char* text) {
    try {
      ApiKeys::parse(text, "keys");
    } catch (const Error& error) {
      return error.detail().file + " " + error.detail().where + " " + error.detail().message;
    }
    return std::string();
  };
  EXPECT_THAT(message("0123456789abcdef\nshort\n"), HasSubstr("keys line 2 a key of 5 characters"));
  EXPECT_THAT(message("# nothing\n"), HasSubstr("holds no key"));
}

TEST(Api, OnlyNamesOfTheLoopbackInterfaceAreLoopback) {
  for (const char* host : {"localhost", "localhost:8000", "127.0.0.1:1", "127.1.2.3", "[::1]:8000", "[::1]"})
    EXPECT_TRUE(names_loopback(host)) << host;
  for (const char* host :
       {"", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "[::2]", "10.0.0.1", "::1"})
    EXPECT_FALSE(names_loopback(host)) << host;
}

}  // namespace
}  // namespace llmq
