#include "evaluate/speed_report.h"

#include <fmt/format.h>

#include "evaluate/bench_page.h"
#include "export/report/roofline.h"

namespace llmq {
namespace {

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
          {"bandwidth_fraction", r.bandwidth_fraction(report.machine.read_bytes_per_second())},
          {"cost_per_million_tokens",
           optional_json(cost_per_million_tokens(report.price_per_hour, r.tokens_per_second))}};
}

std::vector<std::vector<std::string>> speed_table(const SpeedReport& report) {
  std::vector<std::vector<std::string>> rows = {{"batch", "prompt", "new", "first token p50 / p95, ms",
                                                 "between tokens p50 / p95, ms", "prefill, tokens/s",
                                                 "decode, tokens/s", "MB read per token",
                                                 "of the read bandwidth", "peak memory, MB"}};
  for (const SpeedRow& row : report.rows) {
    const SpeedResult& r = row.result;
    rows.push_back(
        {std::to_string(r.asked.batch), std::to_string(r.asked.prompt_tokens),
         std::to_string(r.asked.new_tokens),
         fmt::format("{:.1f} / {:.1f}", 1e3 * r.ttft_p50, 1e3 * r.ttft_p95),
         fmt::format("{:.2f} / {:.2f}", 1e3 * r.itl_p50, 1e3 * r.itl_p95),
         fmt::format("{:.0f}", r.prefill_tokens_per_second), fmt::format("{:.1f}", r.tokens_per_second),
         fmt::format("{:.1f}", r.bytes_per_step / static_cast<double>(r.asked.batch) * 1e-6),
         fmt::format("{:.0f} %", 100 * r.bandwidth_fraction(report.machine.read_bytes_per_second())),
         fmt::format("{:.0f}", static_cast<double>(row.peak_memory_bytes) * 1e-6)});
  }
  return rows;
}

Chart speed_roofline(const SpeedReport& report) {
  std::vector<RooflinePoint> points;
  for (std::size_t i = 0; i < report.rows.size(); ++i) {
    const SpeedResult& r = report.rows[i].result;
    const std::string which = fmt::format("batch {}, prompt {}", r.asked.batch, r.asked.prompt_tokens);
    points.push_back({fmt::format("d{}", i + 1), "decoding, " + which, r.bytes_per_step,
                      r.operations_per_step, r.itl_p50});
    points.push_back({fmt::format("p{}", i + 1), "prefill, " + which, r.prefill_bytes_per_token,
                      r.prefill_operations_per_token,
                      r.prefill_tokens_per_second > 0 ? 1 / r.prefill_tokens_per_second : 0});
  }
  return roofline_chart(report.machine.read_bytes_per_second(), report.machine.peak_operations_per_second,
                        "steps as they were measured", points);
}

}  // namespace

Json SpeedReport::to_json() const {
  Json list = Json::array();
  for (const SpeedRow& row : rows) list.push_back(Json(members(*this, row)));
  return Json::object(
      {{"schema", "llmq.bench/1"}, {"model", model}, {"machine", machine.to_json()}, {"rows", list}});
}

std::string SpeedReport::to_csv() const {
  std::vector<Json::Object> lines;
  for (const SpeedRow& row : rows) lines.push_back(members(*this, row));
  return csv_text(lines);
}

std::string SpeedReport::to_html() const {
  BenchPage page;
  page.title = "Speed of " + model;
  page.below = fmt::format("{}, {} compute, suite {}: {}", config, compute, suite, machine.name());
  if (!rows.empty()) {
    const SpeedResult& first = rows.front().result;
    page.cards = {{fmt::format("{:.1f}", first.tokens_per_second),
                   fmt::format("tokens/s, batch {}", first.asked.batch)},
                  {fmt::format("{:.0f}", first.prefill_tokens_per_second), "prompt tokens/s"}};
  }
  page.cards.push_back(
      {fmt::format("{:.1f} GB/s", machine.read_bytes_per_second() * 1e-9), "memory read, measured beside"});
  page.cards.push_back(
      {fmt::format("{:.0f}", machine.peak_operations_per_second * 1e-9), "peak GFLOP/s in " + compute});
  page.figure = speed_roofline(*this);
  page.figure_words =
      "d1, d2 …: a decoding step of the first, second … case of the table; p1, p2 …: its prefill. "
      "Bytes are those that must be read at the least; what a cache holds can stand above the roof.";
  page.tables = {{"Cases", speed_table(*this)}};
  page.notes = {
      "Decode counts tokens after each sequence's first; of the read bandwidth: bytes that one step must "
      "read / median time of a step / bandwidth."};
  page.machine = machine;
  return render_bench_page(page);
}

}  // namespace llmq
