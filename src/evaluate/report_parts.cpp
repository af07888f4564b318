#include "evaluate/report_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace llmq {
namespace {

std::string csv_cell(const Json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return value.dump();
  const std::string& text = value.as_string();
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

bool MachineFigures::unsteady() const {
  const double before = peaks.read_bytes_per_second, after = read_bytes_per_second_after;
  return std::abs(before - after) > 0.1 * std::max(before, after);
}

double MachineFigures::read_bytes_per_second() const {
  return std::max(peaks.read_bytes_per_second, read_bytes_per_second_after);
}

std::string MachineFigures::name() const {
  return peaks.gpu.empty() ? fmt::format("{}, {}, {} threads", peaks.cpu, isa, peaks.threads) : peaks.gpu;
}

Json MachineFigures::to_json() const {
  Json list = Json::array();
  for (const LevelPeak& level : peaks.arithmetic)
    list.push_back(Json::object({{"level", level.level},
                                 {"arithmetic", arithmetic_name(level.kind)},
                                 {"gops", level.peak.by_clock * 1e-9}}));
  return Json::object({{"cpu", peaks.cpu},
                       {"isa", isa},
                       {"threads", peaks.threads},
                       {"read_bandwidth_gbps", read_bytes_per_second() * 1e-9},
                       {"peak_gflops", peak_operations_per_second * 1e-9},
                       {"gpu", peaks.gpu.empty() ? Json() : Json(peaks.gpu)},
                       {"peaks", list},
                       {"unsteady", unsteady()}});
}

std::optional<double> cost_per_million_tokens(std::optional<double> price_per_hour,
                                              double tokens_per_second) {
  if (!price_per_hour || tokens_per_second <= 0) return std::nullopt;
  return *price_per_hour / 3600 / tokens_per_second * 1e6;
}

std::string share_text(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f} %", 100 * *share) : "-";
}

Json optional_json(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

std::string csv_text(std::span<const Json::Object> rows) {
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string names, values;
    for (const auto& [name, value] : rows[r]) {
      names += (names.empty() ? "" : ",") + name;
      values += (values.empty() ? "" : ",") + csv_cell(value);
    }
    if (r == 0) text += names + "\n";
    text += values + "\n";
  }
  return text;
}

}  // namespace llmq
