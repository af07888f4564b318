// A plan and an outcome of `llmq quantize` for people: tables and sentences on stdout.
#pragma once
#include "job/quantize_job.h"

namespace llmq::tools {

void print_plan(const OutputForm& form, const JobPreview& preview);
// With the figures and gates of its evaluation; without one, the command that would make one.
void print_outcome(const JobOutcome& outcome);

}  // namespace llmq::tools
