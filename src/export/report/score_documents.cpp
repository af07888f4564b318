#include "export/report/score_documents.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "base/json_text.h"
#include "export/report/report_page.h"

namespace llmq {
namespace {

constexpr const char *kScoreHeading = "\n## Task scores\n", *kMadeHeading = "\n## How it was made\n";

// A name as text of a Markdown table, which it can neither leave nor format.
std::string plain_markdown(const std::string& name) {
  std::string text;
  for (const char c : name) {
    if (c == '<')
      text += "&lt;";
    else if (c == '&')
      text += "&amp;";
    else if (std::string_view("\\`*[]|#!~").find(c) != std::string_view::npos)
      text += std::string("\\") + c;
    else
      text += c;
  }
  return text;
}

std::string count_cell(const Json& row, const char* key) {
  const std::optional<double> count = html::number_of(row, key);
  return count ? fmt::format("{:.0f}", *count) : "–";
}

std::string score_section(const Json& scores) {
  const bool compared = !text_at(scores, "baseline").empty();
  std::string text = std::string(kScoreHeading) + "\nBy lm-evaluation-harness";
  if (const std::string version = text_at(scores, "harness"); !version.empty())
    text += " " + plain_markdown(version);
  if (const std::string date = text_at(scores, "date"); !date.empty()) text += ", " + date;
  if (compared) text += ", beside " + plain_markdown(text_at(scores, "baseline"));
  text += ".\n\n| task | metric | shots | documents | this model |";
  text += std::string(compared ? " original |" : "") + "\n|---|---|---:|---:|---:|" +
          (compared ? "---:|" : "") + "\n";
  for (const Json& row : html::list_of(scores, "rows")) {
    const std::string filter = text_at(row, "filter");
    const std::optional<double> error = html::number_of(row, "standard_error"),
                                before = html::number_of(row, "baseline");
    text +=
        fmt::format("| {} | {}{} | {} | {} | {:.6g}{} |", plain_markdown(text_at(row, "task")),
                    plain_markdown(text_at(row, "metric")),
                    filter.empty() || filter == "none" ? "" : " (" + plain_markdown(filter) + ")",
                    count_cell(row, "shots"), count_cell(row, "asked"),
                    html::number_of(row, "value").value_or(0), error ? fmt::format(" ± {:.2g}", *error) : "");
    if (compared) text += before ? fmt::format(" {:.6g} |", *before) : " – |";
    text += "\n";
  }
  return text;
}

// What the hub knows as a benchmark, and which of its figures stands on its board.
struct HubBenchmark {
  const char *file, *dataset, *task_id;
  std::string_view task;  // of lm-eval: this, or this and an ending
  bool begins;
  std::array<std::string_view, 2> metrics;
};
constexpr HubBenchmark kHubBenchmarks[] = {
    {"gsm8k.yaml", "openai/gsm8k", "gsm8k", "gsm8k", false, {"exact_match", ""}},
    {"mmlu_pro.yaml", "TIGER-Lab/MMLU-Pro", "mmlu_pro", "mmlu_pro", false, {"exact_match", ""}},
    {"gpqa.yaml", "Idavidrein/gpqa", "gpqa_diamond", "gpqa_diamond", true, {"acc", "exact_match"}},
};

// Of a benchmark's figures the first; every document has to have been asked.
const Json* row_of(const HubBenchmark& benchmark, const Json& scores) {
  for (const Json& row : html::list_of(scores, "rows")) {
    const std::string task = text_at(row, "task"), metric = text_at(row, "metric");
    const bool named = benchmark.begins ? task.starts_with(benchmark.task) : task == benchmark.task;
    const auto documents = html::number_of(row, "documents"), asked = html::number_of(row, "asked");
    if (named && documents && asked && *documents == *asked && html::number_of(row, "value") &&
        std::find(benchmark.metrics.begin(), benchmark.metrics.end(), metric) != benchmark.metrics.end())
      return &row;
  }
  return nullptr;
}

}  // namespace

std::string card_with_scores(const std::string& card, const Json& scores) {
  const std::string section = score_section(scores);
  if (const std::size_t begin = card.find(kScoreHeading); begin != std::string::npos) {
    const std::size_t end = std::min(card.find("\n## ", begin + 1), card.size());
    return card.substr(0, begin) + section + card.substr(end);
  }
  const std::size_t place = std::min(card.find(kMadeHeading), card.size());
  return card.substr(0, place) + section + card.substr(place);
}

std::vector<std::pair<std::string, std::string>> hub_results(const Json& scores) {
  std::vector<std::pair<std::string, std::string>> files;
  const auto quoted = [](const std::string& text) { return Json(text).dump(); };  // JSON strings are YAML
  for (const HubBenchmark& benchmark : kHubBenchmarks) {
    const Json* const row = row_of(benchmark, scores);
    if (row == nullptr) continue;
    std::string text = fmt::format("- dataset:\n    id: {}\n    task_id: {}\n  value: {:.6g}\n",
                                   benchmark.dataset, benchmark.task_id, 100 * row->at("value").as_double());
    if (const std::string date = text_at(scores, "date"); !date.empty())
      text += "  date: " + quoted(date) + "\n";
    text += "  source:\n    url: https://github.com/EleutherAI/lm-evaluation-harness\n    name: " +
            quoted("lm-evaluation-harness " + text_at(scores, "harness")) + "\n  notes: " +
            quoted(fmt::format("{}, {} ({}), {} shots", text_at(*row, "task"), text_at(*row, "metric"),
                               text_at(*row, "filter"), count_cell(*row, "shots"))) +
            "\n";
    files.emplace_back(benchmark.file, std::move(text));
  }
  return files;
}

}  // namespace llmq
