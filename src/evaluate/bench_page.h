// The page of `llmq bench`: one HTML file for each suite, from one template.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "evaluate/report_parts.h"
#include "export/report/chart.h"

namespace llmq {

// Plain texts in the order of the page; each is escaped where it is printed.
struct BenchPage {
  struct Card {
    std::string figure, words;
  };
  struct Table {
    std::string heading;
    std::vector<std::vector<std::string>> rows;  // the first is the table's head
  };
  std::string title, below;
  std::vector<Card> cards;
  std::optional<Chart> figure;  // above the tables, where it has marks
  std::string figure_words;     // below it
  std::vector<Table> tables;
  std::vector<std::string> warnings;  // shown as such
  std::vector<std::string> notes;
  std::optional<MachineFigures> machine;  // a warning where it was unsteady, and its peaks
};

std::string render_bench_page(const BenchPage& page);

}  // namespace llmq
