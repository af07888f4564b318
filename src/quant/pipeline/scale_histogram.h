// How large a matrix's scales are: a histogram over log2|scale| in quarters of an octave. Exact: a bin is
// found by comparing mantissas, so it is the same on every machine. One pass over the scales.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/json.h"

namespace llmq {

struct ScaleHistogram {
  static constexpr int kBinsPerOctave = 4;
  int first_octave = 0;              // the first bin begins at 2^first_octave
  std::vector<std::int64_t> counts;  // whole octaves; empty: there was no scale but zero
  Json to_json() const;
};

ScaleHistogram scale_histogram(std::span<const float> scales);

}  // namespace llmq
