// Scores of tasks as lm-evaluation-harness writes them (results_*.json of 0.4.x), and how far they fell below
// those of another model.
//
// The file may come from anybody: kinds, lengths and numbers are checked, and what a report has no use for
// (configurations, samples, the machine) is not kept.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace llmq {

struct TaskMetric {
  std::string name, filter;  // "acc", "none"
  double value = 0;
  std::optional<double> standard_error;
  std::optional<bool> higher_is_better;
};

struct TaskScore {
  std::string task;
  std::string version;                                  // of the task; empty when unknown
  std::optional<std::int64_t> shots, documents, asked;  // of `documents` so many were asked (--limit)
  std::vector<TaskMetric> metrics;
};

struct TaskScores {
  std::string model;    // as lm-eval was told: a served name, a hub name, a directory
  std::string harness;  // its version; empty when unknown
  std::string date;     // "2026-11-26", UTC; empty when unknown
  std::vector<TaskScore> tasks;
};

// `file` names the source in errors, Error(kBadInput), which name the key.
TaskScores parse_task_scores(std::string_view text, const std::string& file);

// Of a share of right answers (acc, acc_norm, exact_match): how far below the baseline; negative: above.
struct AccuracyDrop {
  std::string task, metric, filter;
  double drop = 0;
};

// Every share of right answers of `scores`. Error(kBadInput) naming `baseline_file` where a task is missing
// there, was another version of itself, or was asked with other shots or of another number of documents; and
// where `scores` has no such share.
std::vector<AccuracyDrop> accuracy_drops(const TaskScores& scores, const TaskScores& baseline,
                                         const std::string& file, const std::string& baseline_file);

// {model, harness, date, baseline, rows: [{task, metric, filter, version, shots, documents, asked, value,
// standard_error, higher_is_better, baseline}]}: what report.json keeps. `baseline` may be null.
Json to_json(const TaskScores& scores, const TaskScores* baseline);

}  // namespace llmq
