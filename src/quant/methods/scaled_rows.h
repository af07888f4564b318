// What rounding to nearest changes in rows that are scaled before and scaled back after (scaled_difference(),
// quant/methods/rounding.h), on a device.
#pragma once
#include <algorithm>
#include <cstdint>

#include "device/difference_maker.h"
#include "quant/methods/rounding.h"

namespace llmq {

// Arrays are the device's, [rows, columns]; s: s, then 1 / s.
struct ScaledRows {
  std::int64_t rows = 0, columns = 0;
  const float* weight = nullptr;
  const float* s = nullptr;
  float* difference = nullptr;
};

// scheme_of(row): neighbours of one scheme, one object, are one call.
template <class SchemeOf>
void make_scaled_differences(DifferenceMaker& maker, const ScaledRows& rows, const SchemeOf& scheme_of) {
  for (std::int64_t begin = 0, end = 0; begin < rows.rows; begin = end) {
    const QuantScheme* const scheme = scheme_of(begin);
    while (end < rows.rows && scheme_of(end) == scheme) ++end;
    RowDifferences made;
    made.items = end - begin;
    made.columns = rows.columns;
    made.group = std::min(scheme->group_of(rows.columns), rows.columns);
    made.weight = rows.weight + begin * rows.columns;
    made.s = rows.s;
    made.inverse = rows.s + rows.columns;
    made.difference = rows.difference + begin * rows.columns;
    made.rule = grid_rule(*scheme);
    maker.make_differences(made);
  }
}

}  // namespace llmq
