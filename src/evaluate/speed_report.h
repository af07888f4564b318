// `llmq bench` in the forms others read: JSON (schema llmq.bench/1), CSV and one HTML page without outside
// references.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "evaluate/report_parts.h"
#include "evaluate/speed.h"

namespace llmq {

struct SpeedRow {
  SpeedResult result;
  std::uint64_t peak_memory_bytes = 0;  // resident, of the process meanwhile
};

struct SpeedReport {
  std::string model, config, suite, compute;  // config: the model's scheme, "w4a16_g64_sym" or "bf16"
  MachineFigures machine;
  std::optional<double> price_per_hour;  // of this machine
  std::vector<SpeedRow> rows;

  Json to_json() const;
  std::string to_csv() const;  // a heading and a line for each row
  std::string to_html() const;
};

}  // namespace llmq
