// The figures of a run for dashboards: DIR/metrics.json (flat numbers, as experiment trackers take them) and
// DIR/llmq.prom (Prometheus' text format, for the textfile collector of its node exporter). Both replace what
// the last run wrote, each in one step.
#pragma once
#include <string>

#include "base/io.h"
#include "base/json.h"
#include "job/job_settings.h"

namespace llmq {

// `outcome`: the document of schema llmq.quantize/1. `exit_code`: what the run leaves with.
Json metrics_json(const Json& outcome, int exit_code, const Program& program);
std::string prometheus_text(const Json& outcome, int exit_code, const Program& program, double unix_seconds);

// Nothing when `directory` is empty.
void write_metrics(Io& io, const std::string& directory, const Json& outcome, int exit_code,
                   const Program& program);

}  // namespace llmq
