// What rounding to nearest changes: value(code(w)) - w of whole rows, as scale and clip searches judge it,
// under scales found in the row (the rule is quant/methods/rounding.h's). The host makes them row by row
// (quant/methods/rounding.cpp), a device for many at once (kernels/cuda/row_differences.h).
#pragma once
#include <stdint.h>

#include "kernels/common/scale_search.h"

namespace llmq {

// Items [0, items): item i is row (first_item + i) / options of the weight, from row 0 of `weight` on, under
// option (first_item + i) % options. Without ranges each group's range is its own, of w s; with them a row
// has one group, and its range is shrunk as the option says. What lies where is the device's.
struct RowDifferences {
  int64_t items = 0, columns = 0, group = 1, first_item = 0, options = 1;
  const float* weight = nullptr;  // [rows][columns]
  const float* s = nullptr;       // per column, or null: 1; the value is multiplied by `inverse` again
  const float* inverse = nullptr;
  const float* range = nullptr;   // [rows][2]: low, high; or null
  const float* shrink = nullptr;  // [options][2], where there are ranges
  float* difference = nullptr;    // [items][columns]
  GridRule rule;
};

}  // namespace llmq
