// A plan and an outcome of `llmq quantize` for people: tables and sentences on stdout.
#pragma once
#include "job/quantize_job.h"
#include "tools/command.h"
#include "tools/interrupt.h"

namespace llmq::tools {

void print_plan(const OutputForm& form, const JobPreview& preview);
// With the figures and gates of its evaluation; without one, the command that would make one.
void print_outcome(const JobOutcome& outcome);

// The plan of a job that is not run, for people or as JSON; of several ranks with what they send.
int show_plan(QuantizeJob& job, int ranks, double network_bytes_per_second, bool json);
// Exit code of an interrupted run, with the command that goes on.
int report_interrupted(const std::string& output, const Interrupted& signal, const Session& session);

}  // namespace llmq::tools
