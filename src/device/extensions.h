// What some backends can do beyond Backend's operations, each an interface of its own: null where a backend
// cannot, and the host does it then, with the same bits. They last as long as their backend.
//
// A backend says what it has in Backend::extensions(), which has no default: one that wraps another decides
// extension by extension what it passes on (an extension takes tensors of its own device only).
#pragma once

namespace llmq {

class ColumnRounder;
class DevicePeaks;
class DifferenceMaker;
class Factorizer;
class GramTotals;
class RowSums;
class TokenDrawer;

struct Extensions {
  ColumnRounder* column_rounder = nullptr;      // device/column_rounder.h
  DevicePeaks* device_peaks = nullptr;          // device/device_peaks.h
  DifferenceMaker* difference_maker = nullptr;  // device/difference_maker.h
  Factorizer* factorizer = nullptr;             // device/factorizer.h
  GramTotals* gram_totals = nullptr;            // device/gram_total.h
  RowSums* row_sums = nullptr;                  // device/row_sums.h
  TokenDrawer* token_drawer = nullptr;          // device/token_drawer.h
};

// Of a backend that has nothing but Backend's operations.
inline constexpr Extensions kNoExtensions = {};

}  // namespace llmq
