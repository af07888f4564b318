// In which order the columns of a weight are rounded, and which of them share a scale.
//
// Rounding a column moves its error to the columns after it, so those that matter most come first:
//   none    as they lie
//   act     by diag H, descending; groups are runs of this order, stored as a group index per column
//   static  by diag H too, but groups are runs of the columns as they lie and their scales are chosen before
//   gar     whole groups by their largest diag H, inside a group by diag H: no index to store
//           (arXiv 2505.14638)
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace llmq {

enum class RoundingOrder : std::uint8_t { kNone, kAct, kStatic, kGar };

struct ColumnOrder {
  std::vector<std::int32_t> columns;    // the column at each place
  std::vector<std::int32_t> group;      // its group, by place
  std::vector<std::int32_t> run_begin;  // places at which a group's run begins, and the end; kStatic: empty
  bool index_stored = false;            // groups are not k / group_size

  std::int64_t size() const { return static_cast<std::int64_t>(columns.size()); }
};

// Equal diagonals keep their order.
ColumnOrder order_columns(RoundingOrder order, std::span<const double> diagonal, std::int64_t group_size);

// The same groups, each a run of places: what works on one group after another needs. kStatic becomes kNone.
ColumnOrder by_groups(const ColumnOrder& order, std::int64_t group_size);

}  // namespace llmq
