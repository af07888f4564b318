// How long a plan will take on this machine: its own parts, run for two seconds on small problems, scaled to its sizes.
//
//   forward     2 M N K operations at the rate of a product of 256 rows, 1024 x 1024
//   statistics  T K^2 at the rate of a Gram matrix of 1024 channels
//   linears     N (a K + b K^2): the plan's rounding and what is judged of it, timed on rows of 512 and of 1024 weights
//   inputs      c K^2 + d K^3: what the rounding works out once for an input, likewise
//   disk        bytes at the rate of a file of 16 MiB written and synced; weights read and turned into FP32
//
// The rates hold for an otherwise idle machine.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "base/io.h"
#include "device/backend.h"
#include "io/checkpoint.h"
#include "quant/plan.h"

namespace llmq {

struct TimePrediction {
  double seconds = 0, probe_seconds = 0;
  std::vector<std::pair<std::string, double>> parts;
  Json to_json() const;
};

// Memory while it probes: 40 MB. `directory` is where the disk is measured.
TimePrediction predict_time(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec,
                            Backend& backend, Io& io, const Path& directory);

}  // namespace llmq
