// What the reports of `llmq bench` have in common: the machine beside the figures, costs, and CSV.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "device/machine_peaks.h"

namespace llmq {

struct MachineFigures {
  MachinePeaks peaks;
  std::string isa;                         // "avx512_bf16"
  double read_bytes_per_second_after = 0;  // measured again at the end
  double peak_operations_per_second = 0;   // of the level in use, in the compute type

  // A neighbour was busy: the bandwidth before and after differ by more than a tenth.
  bool unsteady() const;
  double read_bytes_per_second() const;  // the greater of the two
  std::string name() const;              // "AMD EPYC, avx512_bf16, 2 threads", or of the device
  Json to_json() const;
};

// Of a machine that costs so much and writes so many tokens; none without a price or a token.
std::optional<double> cost_per_million_tokens(std::optional<double> price_per_hour, double tokens_per_second);
std::string share_text(const std::optional<double>& share);  // "12.5 %", or "-" where there is none
Json optional_json(const std::optional<double>& value);

// A heading of the first row's names, and a line for each row; all rows have the same names.
std::string csv_text(std::span<const Json::Object> rows);

}  // namespace llmq
