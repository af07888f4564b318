// `llmq bench` in the forms others read: JSON (schema llmq.bench/1), CSV and one HTML page without outside references.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "device/machine_peaks.h"
#include "evaluate/speed.h"

namespace llmq {

struct SpeedRow {
  SpeedResult result;
  std::uint64_t peak_memory_bytes = 0;  // resident, of the process meanwhile
};

struct SpeedReport {
  std::string model, config, suite, compute;  // config: the model's scheme, "w4a16_g64_sym" or "bf16"
  std::string isa;                            // "avx512_bf16"
  MachinePeaks machine;
  double read_bytes_per_second_after = 0;  // measured again at the end
  double peak_operations_per_second = 0;   // of the level in use, in the compute type
  std::optional<double> price_per_hour;    // of this machine
  std::vector<SpeedRow> rows;

  // A neighbour was busy: the bandwidth before and after differ by more than a tenth.
  bool unsteady() const;
  double read_bytes_per_second() const;  // the greater of the two
  std::optional<double> cost_per_million_tokens(const SpeedRow& row) const;
  Json to_json() const;
  std::string to_csv() const;  // a heading and a line for each row
  std::string to_html() const;
};

}  // namespace llmq
