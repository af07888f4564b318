// What `vllm bench serve --save-result` writes, of a load that llmq drove: plots and dashboards that read
// vLLM's files read these. Names and units of vllm/benchmarks/serve.py, vLLM 0.33.
#pragma once
#include <ctime>

#include "evaluate/load_report.h"

namespace llmq {

// An object for each row, one a line, which is the form of vLLM's --append-result; with one row it is that of
// --save-result. `now` is the date in all of them, in local time. Times are in milliseconds, the duration in
// seconds, the acceptance rate in percent. One key is llmq's own: `batching`.
std::string vllm_result_lines(const LoadReport& report, const std::tm& now);

}  // namespace llmq
