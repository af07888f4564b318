// When a run's time is predicted, and in what words.
#pragma once
#include "quant/plan/time_prediction.h"

namespace llmq::tools {

// Two seconds of probing are little beside a run of minutes, and a twentieth of one of half a minute, which
// nobody plans for.
bool is_long(double flops, std::uint64_t bytes_in);
// Where an output's disk is measured.
Path directory_of(const Path& output);
void print_time(const TimePrediction& time);

}  // namespace llmq::tools
