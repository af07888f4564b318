// `llmq bench --suite matrix` in the forms others read: tables of words, JSON (schema llmq.bench/1), CSV and
// one HTML page without outside references.
#pragma once
#include <string>
#include <vector>

#include "evaluate/migration_study.h"

namespace llmq {

struct StudyText {
  std::string protocol, path, sha256;  // of the text that was scored
  std::int64_t windows = 0;
};

struct StudyReport {
  std::string model, quantized, compute;  // quantized is empty where none was given
  std::optional<MachineFigures> machine;
  std::optional<double> price_per_hour;
  LoadMix mix;  // its number of requests is for each client
  StudyText text;
  DecisionTargets targets;
  std::vector<StudyConfiguration> configurations;

  // The first row is the heading. Figures of the table; what to deploy, one row for each target.
  std::vector<std::vector<std::string>> figures() const;
  std::vector<std::vector<std::string>> decisions() const;
  // What was not measured and why, and at which batch speculation stops paying.
  std::vector<std::string> sentences() const;
  std::string hardware() const;

  Json to_json() const;
  std::string to_csv() const;
  std::string to_html() const;
};

}  // namespace llmq
