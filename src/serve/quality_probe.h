// A fixed batch of texts that the engine scores at intervals while it serves, so that a model whose quality
// changed is noticed.
//
//   mean log probability = 1/N sum_i log p(x_i | x_<i) over all tokens of the batch but the first of each
//   text, in nats; perplexity = exp of its negative.
//
// Rows are invariant: while weights, memory and processor are what they were, every probe gives the same
// digits, whatever runs beside it. Its texts are scored one after the other, each as the least urgent of
// requests and a few rows of a step at a time, so that answers hardly feel it; a probe that finds the queue
// full is skipped.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/io.h"
#include "serve/engine_thread.h"
#include "serve/metrics.h"
#include "serve/served_model.h"

namespace llmq {

// What a probe found once, to be compared with.
struct ProbeBaseline {
  std::string model, tokens_sha256;  // of the ids that were scored
  std::int64_t tokens = 0;
  double mean_log_prob = 0;
};
// Nothing where there is no such file yet. Error(kBadInput) for one that is no baseline, Error(kUsage) where
// none can be written.
std::optional<ProbeBaseline> read_probe_baseline(Io& io, const Path& path);
void write_probe_baseline(Io& io, const Path& path, const ProbeBaseline& baseline);

struct ProbeOptions {
  double interval_seconds = 0;            // from the end of one to the start of the next; 0: none
  std::string baseline_file;              // where the first probe is recorded, unless there is
  std::optional<ProbeBaseline> baseline;  // what was recorded there
};

class QualityProbe {
 public:
  // The first probe begins at once. What is given by reference lives longer. Error(kBadInput) for a baseline
  // of other tokens.
  QualityProbe(ProbeOptions options, const ServedModel& model, EngineThread& engine, Metrics& metrics);
  ~QualityProbe();  // a probe under way is let go
  QualityProbe(const QualityProbe&) = delete;
  QualityProbe& operator=(const QualityProbe&) = delete;

 private:
  void run(const std::stop_token& stop);
  bool probe(const std::stop_token& stop);  // false where there will be no other
  void scored(double mean_log_prob, double seconds);

  ProbeOptions options_;
  EngineThread& engine_;
  Metrics& metrics_;
  std::vector<std::vector<std::int32_t>> texts_;
  ProbeBaseline found_;  // its mean log probability with the first probe
  ProbeFigures figures_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;
};

}  // namespace llmq
