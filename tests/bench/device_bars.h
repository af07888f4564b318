// What a device is asked to reach, and whether it does: from measured lines and the device's own limits to
// one verdict a bar.
//
//   calibration_bf16   products of those of product_8192            0.85 at the slowest shape
//   gram               products of the same, useful ones            0.70 at the slowest shape
//   linear_w4a16       bytes of the read bandwidth, one row         0.80
//                      time of 16 rows, of that of one              1.15 at most
//                      time of dequantize_cublaslt, of its own      2    at the worst of 1 to 16 rows
//   attention_decode   bytes of the read bandwidth                  0.75 at the slowest
//
// Nothing here measures, and no verdict is given of what was not measured.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/machine_peaks.h"

namespace llmq {

namespace measured {  // names of operations
inline constexpr const char *kLargeProduct = "product_8192", *kCalibration = "calibration_bf16",
                            *kGram = "gram", *kCodes4 = "linear_w4a16_g128", *kInt8 = "linear_w8a8",
                            *kDequantized = "dequantize_cublaslt", *kAttention = "attention_decode";
}

struct Measured {
  std::string operation, shape;  // "calibration_bf16", "q 4096x8192x5120"
  std::int64_t rows = 0;
  double seconds = 0, bytes = 0, operations = 0;
  ArithmeticKind kind = ArithmeticKind::kBF16;  // of its products
};

struct Limits {
  double read = 0;          // bytes per second
  double products[3] = {};  // operations per second by ArithmeticKind; 0: not measured
};
Limits limits_of(const MachinePeaks& peaks);

// Of the limit; none where the limit was not measured.
std::optional<double> of_read(const Measured& line, const Limits& limits);
std::optional<double> of_products(const Measured& line, const Limits& limits);

struct Verdict {
  std::string bar;     // "attention_decode of the read bandwidth"
  std::string wanted;  // ">= 0.75"
  std::optional<double> value;
  std::string where;  // the shape that it is of
  bool met = false;
  const char* word() const { return !value ? "not measured" : met ? "met" : "short"; }
};
std::vector<Verdict> verdicts(const std::vector<Measured>& lines, const Limits& limits);

// Seconds of both operations at the rows that both were measured at, rising.
struct RowTimes {
  std::int64_t rows = 0;
  double first = 0, second = 0;
};
std::vector<RowTimes> side_by_side(const std::vector<Measured>& lines, const std::string& first,
                                   const std::string& second);
// The least measured number of rows from which on the second is always the faster.
std::optional<std::int64_t> overtaken_at(const std::vector<RowTimes>& times);

}  // namespace llmq
