// Where the figures of a suite of `llmq bench` go: into the files that were asked for, and to the terminal.
#pragma once
#include "tools/bench/load_options.h"
#include "tools/command.h"
#include "tools/print.h"

namespace llmq::tools {

// `print` writes the report for people, where JSON was not asked for.
template <class Report, class Print>
void put_out(const Report& report, const ServeBench& options, const GlobalOptions& globals,
             const Print& print) {
  if (!options.csv.empty()) write_text_atomically(system_io(), options.csv, report.to_csv());
  if (!options.html.empty()) write_text_atomically(system_io(), options.html, report.to_html());
  if (globals.json)
    print_json(report.to_json());
  else
    print(report);
}

}  // namespace llmq::tools
