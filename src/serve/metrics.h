// What the server measures, as Prometheus text: names that begin with llmq_ and go on as vLLM's do, so that a
// dashboard is ported by changing a prefix; or vLLM's own names beside them.
//
// Any thread may call. Intervals: time to first token from a request's arrival; inter-token latency between
// two deliveries to one answer, shared equally by the tokens of the later one (speculation delivers several
// at once); queue time from arrival to the first step that ran some of the request.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "http/exchange.h"
#include "runtime/serving_engine.h"

namespace llmq {

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds);  // rising; one more bucket holds the rest
  void observe(double value, std::int64_t times = 1);
  const std::vector<double>& bounds() const { return bounds_; }
  const std::vector<std::int64_t>& counts() const { return counts_; }  // of each bucket alone
  double sum() const { return sum_; }
  std::int64_t count() const;

 private:
  std::vector<double> bounds_;
  std::vector<std::int64_t> counts_;
  double sum_ = 0;
};

// What probes of quality found so far (quality_probe.h).
struct ProbeFigures {
  std::int64_t scored = 0, skipped = 0, failed = 0;
  std::optional<double> mean_log_prob, baseline;  // of the last, and the recorded one; nats a token
  double seconds = 0;                             // that the last one took
};

class Metrics {
 public:
  struct Options {
    std::string model;
    bool vllm_names = false;
    std::size_t max_loras = 0;  // adapters that may be loaded; 0: the server has none
  };
  explicit Metrics(Options options);

  void engine(const ServingStatistics& now);
  void first_token(double seconds);
  void more_tokens(double seconds, std::int64_t tokens);  // of one answer since its last delivery
  void queued(double seconds);
  void finished(double seconds, std::int64_t prompt_tokens, std::int64_t generated_tokens);
  void http(const std::string& path, int status);  // `path`: one that the server knows, else "other"
  void probe(const ProbeFigures& now);
  std::string text(const HttpCounters& connections) const;

 private:
  Options options_;
  mutable std::mutex mutex_;
  ServingStatistics engine_;
  std::optional<ProbeFigures> probe_;  // none: nothing is probed
  Histogram ttft_, inter_token_, queue_, whole_, prompt_, generated_;
  std::map<std::pair<std::string, int>, std::int64_t> http_;
};

}  // namespace llmq
