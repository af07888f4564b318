// A roofline: how fast steps of a model compute, against how many operations each byte that is read is for.
// Left of the ridge a machine's read bandwidth is the roof, right of it its arithmetic
// (https://doi.org/10.1145/1498765.1498785).
#pragma once
#include <span>
#include <string>

#include "export/report/chart.h"

namespace llmq {

struct RooflinePoint {
  std::string label, words;
  double bytes = 0, operations = 0;  // of a step; or of anything, both of the same
  double seconds = 0;                // that it took, or is said to take
};

// `bytes_per_second` and `operations_per_second` are the machine's. Points of which something is not positive
// are left out. `words`: what the points are.
Chart roofline_chart(double bytes_per_second, double operations_per_second, const std::string& words,
                     std::span<const RooflinePoint> points);

}  // namespace llmq
