// What a finished job is, in either form: what stdout, report.json, metrics and README.md are made of.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "calibration/calibration_text.h"
#include "export/report/report.h"
#include "job/disk_traffic.h"
#include "job/output_evaluation.h"
#include "quant/pipeline/pipeline.h"
#include "quant/plan/time_prediction.h"

namespace llmq {

struct JobOutcome {
  RunFacts facts;
  std::string output, version;  // as the user named it; of a versioned one
  Compute compute = Compute::kBFloat16;
  std::size_t modules = 0;         // linears, or tensors of a GGUF
  std::uint64_t planned_peak = 0;  // bytes
  std::uint64_t memory_limit = 0;  // bytes; 0: none
  std::optional<TimePrediction> prediction;
  // What follows was found; an evaluation after it holds both models, and is not counted.
  double seconds = 0, predicted_part = 0;  // of the whole run; of what a prediction speaks of
  std::uint64_t peak_rss_bytes = 0;
  std::uint64_t peak_device_bytes = 0;  // of the device that held most
  DiskTraffic disk;
  int ranks = 1;  // that shared the job
  std::uint64_t bytes_between_ranks = 0;
  std::int64_t resumed_blocks = 0;
  std::vector<Fallback> fallbacks;
  std::vector<std::string> warnings;
  Json mixed;  // what mixed precision chose; null without
  std::optional<OutputEvaluation> evaluation;
};

// What the calibration was; null where none was needed.
Json calibration_json(const Recipe& recipe, const CalibrationSet& calibration);

// Into the report of either form: what was planned beside what was found, and the evaluation.
void add_findings(Json& report, const JobOutcome& outcome);

// The document of schema llmq.quantize/1.
Json outcome_json(const JobOutcome& outcome);
// Of such a document: 3 where a gate was missed, or, `strict`, a module fell back; else 0.
int job_exit_code(const Json& outcome, bool strict);

}  // namespace llmq
