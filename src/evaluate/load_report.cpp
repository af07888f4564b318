#include "evaluate/load_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "evaluate/bench_page.h"

namespace llmq {
namespace {

double mean(std::int64_t sum, const LoadResult& result) {
  return static_cast<double>(sum) /
         static_cast<double>(std::max<std::int64_t>(1, result.requests - result.failed));
}

void add_percentiles(Json::Object& object, const std::string& name, const Percentiles& seconds) {
  object.emplace_back(name + "_p50_ms", 1e3 * seconds.p50);
  object.emplace_back(name + "_p95_ms", 1e3 * seconds.p95);
  object.emplace_back(name + "_p99_ms", 1e3 * seconds.p99);
}

Json::Object members(const LoadReport& report, const LoadRow& row) {
  Json::Object object = {{"config", report.config},
                         {"suite", "serve"},
                         {"compute", report.compute.empty() ? Json() : Json(report.compute)},
                         {"endpoint", report.endpoint.empty() ? Json() : Json(report.endpoint)}};
  for (Json::Member& member : load_members(row, report.mix, report.price_per_hour))
    object.push_back(std::move(member));
  return object;
}

Json errors_json(const LoadResult& result) {
  Json list = Json::array();
  for (const auto& error : result.errors)
    list.push_back(Json::object({{"message", error.first}, {"count", error.second}}));
  return list;
}

std::string triple(const Percentiles& seconds) {
  return fmt::format("{:.1f} / {:.1f} / {:.1f}", 1e3 * seconds.p50, 1e3 * seconds.p95, 1e3 * seconds.p99);
}

std::vector<std::vector<std::string>> load_table(const LoadReport& report) {
  std::vector<std::vector<std::string>> rows = {
      {"clients", "batching", "requests/s offered", "answered", "failed", "first token p50 / p95 / p99, ms",
       "between pieces p50 / p95 / p99, ms", "per token p50 / p95 / p99, ms", "requests/s", "tokens/s",
       "drafts accepted", "found in the prefix cache", "peak memory, MB", "cost per million tokens"}};
  for (const LoadRow& row : report.rows)
    rows.push_back(load_cells(row, report.price_per_hour, [](std::uint64_t bytes) {
      return fmt::format("{:.0f}", static_cast<double>(bytes) * 1e-6);
    }));
  return rows;
}

}  // namespace

std::vector<std::string> load_cells(const LoadRow& row, std::optional<double> price_per_hour,
                                    std::string (*memory)(std::uint64_t bytes)) {
  const LoadResult& r = row.result;
  const std::optional<double> cost = cost_per_million_tokens(price_per_hour, r.tokens_per_second);
  return {std::to_string(row.clients),
          row.batching(),
          rate_text(row.rate),
          std::to_string(r.requests - r.failed),
          std::to_string(r.failed),
          triple(r.ttft),
          triple(r.itl),
          triple(r.tpot),
          fmt::format("{:.2f}", r.requests_per_second),
          fmt::format("{:.1f}", r.tokens_per_second),
          share_text(row.acceptance()),
          share_text(row.prefix_hit_share()),
          row.peak_memory_bytes ? memory(*row.peak_memory_bytes) : "-",
          cost ? fmt::format("{:.4g}", *cost) : "-"};
}

std::optional<double> LoadRow::acceptance() const {
  return counters.drafted > 0 ? std::optional(counters.accepted / counters.drafted) : std::nullopt;
}

std::optional<double> LoadRow::prefix_hit_share() const {
  return counters.prefix_queries > 0 ? std::optional(counters.prefix_hits / counters.prefix_queries)
                                     : std::nullopt;
}

Json::Object load_members(const LoadRow& row, const LoadMix& mix, std::optional<double> price_per_hour) {
  const LoadResult& r = row.result;
  const bool measured = r.failed < r.requests;
  Json::Object object = {{"batch", row.clients},
                         {"batching", row.batching()},
                         {"rate", std::isfinite(row.rate) ? Json(row.rate) : Json()},
                         {"requests", r.requests},
                         {"failed", r.failed},
                         {"short_answers", r.short_answers},
                         {"prompt_tokens", mean(r.prompt_tokens, r)},
                         {"new_tokens", mean(r.new_tokens, r)},
                         {"shared_prefix", mix.shared_share},
                         {"seconds", r.seconds}};
  add_percentiles(object, "ttft", r.ttft);
  add_percentiles(object, "itl", r.itl);
  add_percentiles(object, "tpot", r.tpot);
  object.emplace_back("requests_per_second", r.requests_per_second);
  object.emplace_back("tokens_per_second", r.tokens_per_second);
  object.emplace_back("acceptance_rate", optional_json(row.acceptance()));
  object.emplace_back("prefix_hit_share", optional_json(row.prefix_hit_share()));
  object.emplace_back("peak_memory_bytes", row.peak_memory_bytes ? Json(*row.peak_memory_bytes) : Json());
  // steps hold prompts and answers: no one figure says what they must read
  object.emplace_back("bandwidth_fraction", nullptr);
  object.emplace_back("cost_per_million_tokens",
                      optional_json(cost_per_million_tokens(price_per_hour, r.tokens_per_second)));
  if (!measured)
    for (Json::Member& member : object)
      if (member.first.ends_with("_ms")) member.second = Json();
  return object;
}

std::string load_words(const LoadMix& mix, const std::string& each) {
  return fmt::format(
      "{} requests {}, prompts of {} to {} words, {} to {} new tokens{}, {:.0f} % with a common beginning.",
      mix.requests, each, mix.prompt_words / 2 + 1, mix.prompt_words + (mix.prompt_words + 1) / 2 - 1,
      mix.shortest_answer(), mix.longest_answer(),
      mix.long_tail ? fmt::format(" (exponential about {})", mix.new_tokens) : "", 100 * mix.shared_share);
}

std::string rate_text(double rate) { return std::isfinite(rate) ? fmt::format("{:g}", rate) : "inf"; }

Json LoadReport::to_json() const {
  Json list = Json::array();
  for (const LoadRow& row : rows) {
    Json one(members(*this, row));
    one["errors"] = errors_json(row.result);
    list.push_back(std::move(one));
  }
  return Json::object({{"schema", "llmq.bench/1"},
                       {"model", model},
                       {"machine", machine ? machine->to_json() : Json()},
                       {"rows", list}});
}

std::string LoadReport::to_csv() const {
  std::vector<Json::Object> lines;
  for (const LoadRow& row : rows) lines.push_back(members(*this, row));
  return csv_text(lines);
}

std::string LoadReport::to_html() const {
  BenchPage page;
  page.title = "Load on " + model;
  page.below = endpoint.empty() ? fmt::format("{}, {} compute", config, compute) : endpoint;
  if (machine) page.below += ": " + machine->name();
  if (!rows.empty()) {
    const LoadResult& first = rows.front().result;
    page.cards = {{fmt::format("{:.1f}", first.tokens_per_second),
                   fmt::format("tokens/s, {} clients", rows.front().clients)},
                  {fmt::format("{:.1f} ms", 1e3 * first.ttft.p95), "until the first token, p95"},
                  {fmt::format("{:.1f} ms", 1e3 * first.itl.p95), "between pieces, p95"}};
  }
  page.tables = {{"Loads", load_table(*this)}};
  for (const LoadRow& row : rows)
    for (const auto& error : row.result.errors)
      page.warnings.push_back(fmt::format("{} clients, {} requests/s: {} requests failed: {}", row.clients,
                                          rate_text(row.rate), error.second, error.first));
  page.notes = {load_words(mix) + " Failed requests are in no figure."};
  page.machine = machine;
  return render_bench_page(page);
}

}  // namespace llmq
