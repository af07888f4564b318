#include "evaluate/speed_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "export/html_charts.h"
#include "export/html_style.h"

namespace llmq {
namespace {

Json optional_json(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

// The figures of a row in the order and under the names of the JSON schema; CSV has the same.
Json::Object members(const SpeedReport& report, const SpeedRow& row) {
  const SpeedResult& r = row.result;
  return {{"config", report.config},
          {"suite", report.suite},
          {"compute", report.compute},
          {"batch", r.asked.batch},
          {"prompt_tokens", r.asked.prompt_tokens},
          {"new_tokens", r.asked.new_tokens},
          {"runs", r.asked.runs},
          {"ttft_p50_ms", 1e3 * r.ttft_p50},
          {"ttft_p95_ms", 1e3 * r.ttft_p95},
          {"itl_p50_ms", 1e3 * r.itl_p50},
          {"itl_p95_ms", 1e3 * r.itl_p95},
          {"prefill_tokens_per_second", r.prefill_tokens_per_second},
          {"tokens_per_second", r.tokens_per_second},
          {"peak_memory_bytes", row.peak_memory_bytes},
          {"bytes_per_token", r.bytes_per_step / static_cast<double>(r.asked.batch)},
          {"bandwidth_fraction", r.bandwidth_fraction(report.read_bytes_per_second())},
          {"cost_per_million_tokens", optional_json(report.cost_per_million_tokens(row))}};
}

Json machine_json(const SpeedReport& report) {
  Json peaks = Json::array();
  for (const LevelPeak& level : report.machine.arithmetic)
    peaks.push_back(Json::object({{"level", level.level},
                                  {"arithmetic", arithmetic_name(level.kind)},
                                  {"gops", level.peak.by_clock * 1e-9}}));
  return Json::object({{"cpu", report.machine.cpu},
                       {"isa", report.isa},
                       {"threads", report.machine.threads},
                       {"read_bandwidth_gbps", report.read_bytes_per_second() * 1e-9},
                       {"peak_gflops", report.peak_operations_per_second * 1e-9},
                       {"gpu", nullptr},
                       {"peaks", peaks},
                       {"unsteady", report.unsteady()}});
}

std::string csv_cell(const Json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return value.dump();
  const std::string& text = value.as_string();
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

std::string card(const std::string& figure, const std::string& words) {
  return fmt::format("<div class=\"card\"><b>{}</b><span>{}</span></div>\n", html_text(figure),
                     html_text(words));
}

std::string cells(const std::vector<std::string>& row, const char* tag) {
  std::string line = "<tr>";
  for (const std::string& cell : row) line += fmt::format("<{0}>{1}</{0}>", tag, html_text(cell));
  return line + "</tr>\n";
}

std::string page_table(const std::vector<std::vector<std::string>>& rows) {
  std::string table = "<div class=\"wide\"><table><thead>" + cells(rows.front(), "th") + "</thead><tbody>\n";
  for (std::size_t r = 1; r < rows.size(); ++r) table += cells(rows[r], "td");
  return table + "</tbody></table></div>\n";
}

std::string speed_table(const SpeedReport& report) {
  std::vector<std::vector<std::string>> rows = {{"batch", "prompt", "new", "first token p50 / p95, ms",
                                                 "between tokens p50 / p95, ms", "prefill, tokens/s",
                                                 "decode, tokens/s", "MB read per token",
                                                 "of the read bandwidth", "peak memory, MB"}};
  for (const SpeedRow& row : report.rows) {
    const SpeedResult& r = row.result;
    rows.push_back({std::to_string(r.asked.batch), std::to_string(r.asked.prompt_tokens),
                    std::to_string(r.asked.new_tokens),
                    fmt::format("{:.1f} / {:.1f}", 1e3 * r.ttft_p50, 1e3 * r.ttft_p95),
                    fmt::format("{:.2f} / {:.2f}", 1e3 * r.itl_p50, 1e3 * r.itl_p95),
                    fmt::format("{:.0f}", r.prefill_tokens_per_second),
                    fmt::format("{:.1f}", r.tokens_per_second),
                    fmt::format("{:.1f}", r.bytes_per_step / static_cast<double>(r.asked.batch) * 1e-6),
                    fmt::format("{:.0f} %", 100 * r.bandwidth_fraction(report.read_bytes_per_second())),
                    fmt::format("{:.0f}", static_cast<double>(row.peak_memory_bytes) * 1e-6)});
  }
  return page_table(rows);
}

std::string peaks_table(const MachinePeaks& machine) {
  std::vector<std::vector<std::string>> rows = {{"level", "arithmetic", "10^9 operations/s"}};
  for (const LevelPeak& level : machine.arithmetic)
    rows.push_back(
        {level.level, arithmetic_name(level.kind), fmt::format("{:.1f}", level.peak.by_clock * 1e-9)});
  return page_table(rows);
}

}  // namespace

bool SpeedReport::unsteady() const {
  const double before = machine.read_bytes_per_second, after = read_bytes_per_second_after;
  return std::abs(before - after) > 0.1 * std::max(before, after);
}

double SpeedReport::read_bytes_per_second() const {
  return std::max(machine.read_bytes_per_second, read_bytes_per_second_after);
}

std::optional<double> SpeedReport::cost_per_million_tokens(const SpeedRow& row) const {
  if (!price_per_hour || row.result.tokens_per_second <= 0) return std::nullopt;
  return *price_per_hour / 3600 / row.result.tokens_per_second * 1e6;
}

Json SpeedReport::to_json() const {
  Json list = Json::array();
  for (const SpeedRow& row : rows) list.push_back(Json(members(*this, row)));
  return Json::object(
      {{"schema", "llmq.bench/1"}, {"model", model}, {"machine", machine_json(*this)}, {"rows", list}});
}

std::string SpeedReport::to_csv() const {
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string names, values;
    for (const auto& [name, value] : members(*this, rows[r])) {
      names += (names.empty() ? "" : ",") + name;
      values += (values.empty() ? "" : ",") + csv_cell(value);
    }
    if (r == 0) text += names + "\n";
    text += values + "\n";
  }
  return text;
}

std::string SpeedReport::to_html() const {
  std::string page =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>";
  page += html_text("Speed of " + model) + "</title>\n<style>" + std::string(kReportStyle) +
          "</style></head>\n<body><main>\n";
  page += fmt::format("<header><h1>{}</h1><p>{}</p></header>\n", html_text("Speed of " + model),
                      html_text(fmt::format("{}, {} compute, suite {}: {} ({}, {} threads)", config, compute,
                                            suite, machine.cpu, isa, machine.threads)));
  page += "<div class=\"cards\">\n";
  if (!rows.empty()) {
    const SpeedResult& first = rows.front().result;
    page += card(fmt::format("{:.1f}", first.tokens_per_second),
                 fmt::format("tokens/s, batch {}", first.asked.batch));
    page += card(fmt::format("{:.0f}", first.prefill_tokens_per_second), "prompt tokens/s");
  }
  page += card(fmt::format("{:.1f} GB/s", read_bytes_per_second() * 1e-9), "memory read, measured beside");
  page += card(fmt::format("{:.0f}", peak_operations_per_second * 1e-9), "peak GFLOP/s in " + compute);
  page += "</div>\n<h2>Cases</h2>\n" + speed_table(*this);
  if (unsteady())
    page +=
        "<p class=\"note bad\">The read bandwidth before and after differ by more than a tenth: something "
        "else was running.</p>\n";
  page += "<h2>What this machine can do at most</h2>\n" + peaks_table(machine);
  page +=
      "<p class=\"note\">Decode counts tokens after each sequence's first; of the read bandwidth: bytes that "
      "one step must read / "
      "median time of a step / bandwidth.</p>\n</main></body></html>\n";
  return page;
}

}  // namespace llmq
