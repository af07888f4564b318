// The machine beside what `llmq bench` measures.
#pragma once
#include "device/backend.h"
#include "evaluate/report_parts.h"

namespace llmq::tools {

MachineFigures measure_figures(Backend& backend, Compute compute);
void measure_bandwidth_again(MachineFigures& figures, Backend& backend);  // when the rest is done

}  // namespace llmq::tools
