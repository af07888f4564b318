#include "evaluate/study_report.h"

#include <fmt/format.h>

#include "evaluate/bench_page.h"

namespace llmq {
namespace {

// A mix says how many requests a client sends; a row has them all.
LoadMix mix_of_row(const StudyReport& report, const LoadRow& row) {
  LoadMix mix = report.mix;
  mix.requests = row.result.requests;
  return mix;
}

Json::Object members(const StudyReport& report, const StudyConfiguration& configuration, const LoadRow& row) {
  Json::Object object = {{"config", configuration.name},
                         {"suite", "matrix"},
                         {"compute", report.compute},
                         {"model", configuration.model},
                         {"scheme", configuration.scheme},
                         {"draft", configuration.draft.empty() ? Json() : Json(configuration.draft)},
                         {"prefix_caching", configuration.prefix_caching},
                         {"ppl", optional_json(configuration.ppl)},
                         {"ppl_stderr", optional_json(configuration.ppl_stderr)}};
  for (Json::Member& member : load_members(row, mix_of_row(report, row), report.price_per_hour))
    object.push_back(std::move(member));
  return object;
}

Json decision_json(const StudyReport& report, const Decision& decision) {
  Json json = Json::object({{"hardware", report.hardware()},
                            {"ttft_target_ms", 1e3 * decision.ttft_seconds},
                            {"quality_tolerance", decision.tolerance}});
  const bool found = decision.row != nullptr;
  json["config"] = found ? Json(decision.configuration->name) : Json();
  json["batch"] = found ? Json(decision.row->clients) : Json();
  json["ppl"] = found ? optional_json(decision.configuration->ppl) : Json();
  json["ttft_p95_ms"] = found ? Json(1e3 * decision.row->result.ttft.p95) : Json();
  json["tokens_per_second"] = found ? Json(decision.row->result.tokens_per_second) : Json();
  json["cost_per_million_tokens"] = found
                                        ? optional_json(cost_per_million_tokens(
                                              report.price_per_hour, decision.row->result.tokens_per_second))
                                        : Json();
  return json;
}

std::string milliseconds(double p50, double p95) {
  return fmt::format("{:.1f} / {:.1f}", 1e3 * p50, 1e3 * p95);
}

std::string cost_text(const StudyReport& report, double tokens_per_second) {
  const std::optional<double> cost = cost_per_million_tokens(report.price_per_hour, tokens_per_second);
  return cost ? fmt::format("{:.4g}", *cost) : "-";
}

std::string gains_sentence(std::span<const SpeculationGain> gains) {
  std::string sentence = "Speculation, tokens/s over those without it:";
  const char* comma = "";
  for (const SpeculationGain& gain : gains) {
    sentence += fmt::format("{} batch {}:", comma, gain.batch);
    if (gain.alone) sentence += fmt::format(" {:.2f}", *gain.alone);
    if (gain.with_prefix_cache)
      sentence += fmt::format(" ({:.2f} with the prefix cache)", *gain.with_prefix_cache);
    comma = ",";
  }
  return sentence + ".";
}

}  // namespace

std::string StudyReport::hardware() const { return machine ? machine->name() : "this machine"; }

std::vector<std::vector<std::string>> StudyReport::figures() const {
  std::vector<std::vector<std::string>> table = {{"configuration", "scheme", "perplexity", "batch",
                                                  "ttft p50 / p95, ms", "itl p50 / p95, ms", "tok/s",
                                                  "accepted", "prefix hits", "memory, MB", "per Mtok"}};
  for (const StudyConfiguration& configuration : configurations)
    for (const LoadRow& row : configuration.rows) {
      const LoadResult& r = row.result;
      const bool measured = r.failed < r.requests;
      table.push_back(
          {configuration.name, configuration.scheme,
           configuration.ppl ? fmt::format("{:.4f}", *configuration.ppl) : "-", std::to_string(row.clients),
           measured ? milliseconds(r.ttft.p50, r.ttft.p95) : "-",
           measured ? milliseconds(r.itl.p50, r.itl.p95) : "-", fmt::format("{:.1f}", r.tokens_per_second),
           share_text(row.acceptance()), share_text(row.prefix_hit_share()),
           row.peak_memory_bytes ? fmt::format("{:.0f}", static_cast<double>(*row.peak_memory_bytes) * 1e-6)
                                 : "-",
           cost_text(*this, r.tokens_per_second)});
    }
  return table;
}

std::vector<std::vector<std::string>> StudyReport::decisions() const {
  std::vector<std::vector<std::string>> table = {{"hardware", "first token within",
                                                  "perplexity above the baseline's by at most", "deploy",
                                                  "batch", "ttft p95, ms", "tok/s", "per Mtok"}};
  for (const Decision& decision : decide(configurations, targets)) {
    std::vector<std::string> row = {hardware(), fmt::format("{:g} ms", 1e3 * decision.ttft_seconds),
                                    fmt::format("{:g} %", 100 * decision.tolerance)};
    if (decision.row) {
      const LoadResult& r = decision.row->result;
      for (const std::string& cell :
           {decision.configuration->name, std::to_string(decision.row->clients),
            fmt::format("{:.1f}", 1e3 * r.ttft.p95), fmt::format("{:.1f}", r.tokens_per_second),
            cost_text(*this, r.tokens_per_second)})
        row.push_back(cell);
    } else {
      row.insert(row.end(), {"nothing measured here does", "-", "-", "-", "-"});
    }
    table.push_back(std::move(row));
  }
  return table;
}

std::vector<std::string> StudyReport::sentences() const {
  std::vector<std::string> list;
  for (const StudyConfiguration& configuration : configurations)
    if (!configuration.missing.empty())
      list.push_back(fmt::format("{} was not measured: {}.", configuration.name, configuration.missing));
  const std::vector<SpeculationGain> gains = speculation_gains(configurations);
  if (gains.empty()) return list;
  list.push_back(gains_sentence(gains));
  if (const std::optional<std::int64_t> stops = speculation_stops_at(gains))
    list.push_back(fmt::format("Speculation stops paying at batch {}.", *stops));
  else if (gains.back().alone)
    list.push_back(
        fmt::format("Speculation still pays at batch {}, the largest measured.", gains.back().batch));
  return list;
}

Json StudyReport::to_json() const {
  Json rows = Json::array(), missing = Json::array(), gains = Json::array(), decided = Json::array();
  for (const StudyConfiguration& configuration : configurations) {
    for (const LoadRow& row : configuration.rows) rows.push_back(Json(members(*this, configuration, row)));
    if (!configuration.missing.empty())
      missing.push_back(Json::object({{"config", configuration.name}, {"reason", configuration.missing}}));
  }
  const std::vector<SpeculationGain> measured = speculation_gains(configurations);
  for (const SpeculationGain& gain : measured)
    gains.push_back(Json::object({{"batch", gain.batch},
                                  {"alone", optional_json(gain.alone)},
                                  {"with_prefix_cache", optional_json(gain.with_prefix_cache)}}));
  const std::optional<std::int64_t> stops = speculation_stops_at(measured);
  for (const Decision& decision : decide(configurations, targets))
    decided.push_back(decision_json(*this, decision));
  return Json::object(
      {{"schema", "llmq.bench/1"},
       {"model", model},
       {"quantized", quantized.empty() ? Json() : Json(quantized)},
       {"machine", machine ? machine->to_json() : Json()},
       {"text", Json::object({{"protocol", text.protocol},
                              {"path", text.path},
                              {"sha256", text.sha256},
                              {"windows", text.windows}})},
       {"rows", rows},
       {"missing", missing},
       {"speculation",
        Json::object({{"gains", gains}, {"stops_paying_at_batch", stops ? Json(*stops) : Json()}})},
       {"decisions", decided}});
}

std::string StudyReport::to_csv() const {
  std::vector<Json::Object> lines;
  for (const StudyConfiguration& configuration : configurations)
    for (const LoadRow& row : configuration.rows) lines.push_back(members(*this, configuration, row));
  return csv_text(lines);
}

std::string StudyReport::to_html() const {
  BenchPage page;
  page.title = "What a move from " + model + " brings";
  page.below = (quantized.empty() ? "" : "to " + quantized + ", ") + compute + " compute: " + hardware();
  page.tables = {{"What to deploy", decisions()}, {"Figures", figures()}};
  page.notes = sentences();
  page.notes.push_back(fmt::format("{} Perplexity: {}, {} windows of {}.", load_words(mix, "a client"),
                                   text.protocol, text.windows, text.path));
  page.machine = machine;
  return render_bench_page(page);
}

}  // namespace llmq
