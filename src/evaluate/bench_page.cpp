#include "evaluate/bench_page.h"

#include <fmt/format.h>

#include "base/json.h"
#include "evaluate/bench_template.h"
#include "export/report/page_template.h"

namespace llmq {
namespace {

BenchPage::Table peaks(const MachinePeaks& machine) {
  BenchPage::Table table{"What this machine can do at most", {{"level", "arithmetic", "10^9 operations/s"}}};
  for (const LevelPeak& level : machine.arithmetic)
    table.rows.push_back(
        {level.level, arithmetic_name(level.kind), fmt::format("{:.1f}", level.peak.by_clock * 1e-9)});
  return table;
}

Json table_json(const BenchPage::Table& table) {
  Json rows = Json::array();
  for (const std::vector<std::string>& row : table.rows) rows.push_back(text_list(row));
  return Json::object({{"heading", table.heading}, {"rows", rows}});
}

}  // namespace

std::string render_bench_page(const BenchPage& page) {
  Json cards = Json::array(), tables = Json::array();
  for (const BenchPage::Card& card : page.cards)
    cards.push_back(Json::object({{"figure", card.figure}, {"words", card.words}}));
  for (const BenchPage::Table& table : page.tables) tables.push_back(table_json(table));
  std::vector<std::string> warnings = page.warnings;
  if (page.machine) {
    tables.push_back(table_json(peaks(page.machine->peaks)));
    if (page.machine->unsteady())
      warnings.push_back(
          "The read bandwidth before and after differ by more than a tenth: something else was running.");
  }
  return render_page(
      kBenchTemplate,
      Json::object(
          {{"title", page.title},
           {"below", page.below},
           {"cards", cards},
           {"figure", page.figure && !page.figure->marks.empty() ? chart_json(*page.figure) : Json()},
           {"figure_words", page.figure_words},
           {"tables", tables},
           {"warnings", text_list(warnings)},
           {"notes", text_list(page.notes)}}));
}

}  // namespace llmq
