// Probes of quality on an engine that the test plays: what they ask, what they say, and what they make of
// trouble.
#include "serve/quality_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "base/error.h"
#include "support/temporary_directory.h"
#include "tests/unit/serve/small_served_model.h"

namespace llmq {
namespace {

using ::testing::HasSubstr;
using testing::small_served_model;

// Every token of a prompt has one log probability.
class ScoringEngine : public RequestEngine {
 public:
  explicit ScoringEngine(double logprob, bool busy = false) : logprob_(logprob), busy_(busy) {}
  std::optional<GenerationRefusal> submit(GenerationRequest request) override {
    EXPECT_TRUE(request.background && request.prompt_logprobs && request.priority == Scheduler::kPriorities);
    if (busy_) return GenerationRefusal{GenerationRefusal::Kind::kBusy, {}, "later"};
    waiting_.push_back(std::move(request));
    EXPECT_EQ(waiting_.size(), 1u) << "one text at a time";
    return std::nullopt;
  }
  void cancel(std::uint64_t) override {}
  const std::vector<GenerationEvent>& step() override {
    events_.clear();
    for (const GenerationRequest& request : waiting_) {
      GenerationEvent& event = events_.emplace_back();
      event.id = request.id;
      event.tokens = {5};
      event.prompt_logprobs.assign(request.prompt.size() - 1, {{1, logprob_}, {}});
      event.finish = FinishReason::kLength;
    }
    waiting_.clear();
    return events_;
  }
  const std::vector<std::uint64_t>& started() const override { return nobody_; }
  bool idle() const override { return waiting_.empty(); }
  const ServingStatistics& statistics() override { return statistics_; }
  void load_adapter(const std::string&, const LoraAdapter&) override {}
  void unload_adapter(const std::string&) override {}

 private:
  double logprob_;
  bool busy_;
  std::vector<GenerationRequest> waiting_;
  std::vector<GenerationEvent> events_;
  std::vector<std::uint64_t> nobody_;
  ServingStatistics statistics_;
};

// The metrics once some of their text is there.
std::string metrics_with(const std::string& text, RequestEngine&& engine, const ProbeOptions& options) {
  Metrics metrics({"m", false});
  EngineThread thread(engine, 8, metrics, [](const std::string&) {});
  const QualityProbe probe(options, small_served_model(), thread, metrics);
  std::string now;
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
       std::chrono::steady_clock::now() < end;) {
    now = metrics.text({});
    if (now.find(text) != std::string::npos) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_THAT(now, HasSubstr(text));
  return now;
}

ProbeOptions every(double seconds, const std::string& baseline = {}) { return {seconds, baseline, {}}; }

TEST(QualityProbe, TheFirstIsRecordedAndOthersAreComparedWithIt) {
  const testing::TemporaryDirectory folder;
  const std::string file = (folder.path() / "baseline.json").string();
  EXPECT_FALSE(read_probe_baseline(system_io(), file).has_value());
  const std::string first = metrics_with("llmq_quality_probes_total{model_name=\"m\",result=\"scored\"} 2\n",
                                         ScoringEngine(-1.25), every(0.01, file));
  EXPECT_THAT(first, HasSubstr("llmq_quality_probe_mean_log_prob{model_name=\"m\"} -1.25\n"));
  EXPECT_THAT(first, HasSubstr("llmq_quality_probe_baseline_mean_log_prob{model_name=\"m\"} -1.25\n"));
  ProbeOptions later = every(0.01, file);
  later.baseline = read_probe_baseline(system_io(), file);
  ASSERT_TRUE(later.baseline.has_value());
  EXPECT_GT(later.baseline->tokens, 100);
  const std::string second = metrics_with("\"scored\"} 1\n", ScoringEngine(-1.5), later);
  EXPECT_THAT(second, HasSubstr("llmq_quality_probe_mean_log_prob{model_name=\"m\"} -1.5\n"));
  EXPECT_THAT(second, HasSubstr("llmq_quality_probe_baseline_mean_log_prob{model_name=\"m\"} -1.25\n"));
  EXPECT_EQ(read_probe_baseline(system_io(), file)->mean_log_prob, -1.25) << "it is recorded once";
}

TEST(QualityProbe, ABusyServerIsNotProbed) {
  const std::string text = metrics_with("\"skipped\"} 2\n", ScoringEngine(-1, true), every(0.01));
  EXPECT_THAT(text, HasSubstr("result=\"scored\"} 0\n"));
  EXPECT_EQ(text.find("llmq_quality_probe_mean"), std::string::npos);
}

TEST(QualityProbe, WhatIsNoNumberIsAFailure) {
  const std::string text = metrics_with("\"failed\"} 1\n", ScoringEngine(std::nan("")), every(100));
  EXPECT_EQ(text.find("llmq_quality_probe_mean"), std::string::npos);
}

TEST(QualityProbe, ABaselineIsChecked) {
  const testing::TemporaryDirectory folder;
  const Path file = folder.path() / "b.json";
  const auto message = [&](const std::string& text) {
    write_text_atomically(system_io(), file, text);
    try {
      ProbeOptions options = every(100, file.string());
      options.baseline = read_probe_baseline(system_io(), file);
      metrics_with("scored", ScoringEngine(-1), options);
    } catch (const Error& error) {
      EXPECT_EQ(exit_code(error.kind()), 2);
      return error.detail().message;
    }
    return std::string();
  };
  EXPECT_THAT(message("{}"), HasSubstr("is no baseline"));
  EXPECT_THAT(
      message(
          R"({"schema": "llmq.probe/1", "model": "o", "tokens": 9, "tokens_sha256": "ab", "mean_log_prob": 1})"),
      HasSubstr("no mean log probability"));
  EXPECT_THAT(
      message(
          R"({"schema": "llmq.probe/1", "model": "o", "tokens": 9, "tokens_sha256": "ab", "mean_log_prob": -1})"),
      HasSubstr("of other tokens"));
  EXPECT_THROW(read_probe_baseline(system_io(), folder.path() / "no" / "b.json"), Error);
}

}  // namespace
}  // namespace llmq
