// What quantizing one block found, as a journal keeps it and as a run that goes on takes it up again.
#pragma once
#include <set>
#include <string>

#include "quant/pipeline/quantize_run.h"

namespace llmq {

// Where the report stood before a block.
struct ReportMark {
  std::size_t modules = 0, fallbacks = 0, warnings = 0, mixtures = 0;
};
ReportMark mark_report(const QuantizeReport& report);

// What came to the report since; `changed`: the dense tensors that the block's folds changed.
Json block_record_json(const QuantizeReport& report, const ReportMark& since,
                       const std::set<std::string>& changed);
// Adds a block's findings to the run's report; the names of the dense tensors it changed.
std::set<std::string> take_record(QuantizeRun& run, const Json& findings);

}  // namespace llmq
