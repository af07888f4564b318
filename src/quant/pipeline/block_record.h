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

// The end of a block: what its folds changed goes to the writer, and what it found with it.
void finish_block(QuantizeRun& run, const ReportMark& before);
// A span of --trace-file: block `block` from `started_ns` on, with what it found.
void trace_block(const QuantizeRun& run, std::size_t block, const ReportMark& before,
                 std::int64_t started_ns);

}  // namespace llmq
