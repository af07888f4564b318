#include "quant/methods/gptq/column_order.h"

#include <algorithm>
#include <numeric>

namespace llmq {
namespace {

std::vector<std::int32_t> counted(std::size_t count) {
  std::vector<std::int32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

}  // namespace

ColumnOrder order_columns(RoundingOrder order, std::span<const double> diagonal, std::int64_t group_size) {
  const std::size_t size = diagonal.size(), width = static_cast<std::size_t>(group_size);
  const auto more = [&](std::int32_t a, std::int32_t b) {
    return diagonal[static_cast<std::size_t>(a)] > diagonal[static_cast<std::size_t>(b)];
  };
  ColumnOrder result;
  result.columns = counted(size);
  result.index_stored = order == RoundingOrder::kAct;
  if (order == RoundingOrder::kAct || order == RoundingOrder::kStatic)
    std::stable_sort(result.columns.begin(), result.columns.end(), more);
  if (order == RoundingOrder::kGar) {
    const std::vector<std::int32_t> column = counted(size);
    std::vector<std::int32_t> groups = counted((size + width - 1) / width);
    std::vector<std::vector<std::int32_t>> members(groups.size());
    for (std::size_t g = 0; g < groups.size(); ++g) {
      members[g].assign(column.begin() + static_cast<std::ptrdiff_t>(g * width),
                        column.begin() + static_cast<std::ptrdiff_t>(std::min(size, (g + 1) * width)));
      std::stable_sort(members[g].begin(), members[g].end(), more);
    }
    std::stable_sort(groups.begin(), groups.end(), [&](std::int32_t a, std::int32_t b) {
      return more(members[static_cast<std::size_t>(a)].front(), members[static_cast<std::size_t>(b)].front());
    });
    result.columns.clear();
    for (const std::int32_t g : groups) {
      const std::vector<std::int32_t>& run = members[static_cast<std::size_t>(g)];
      result.columns.insert(result.columns.end(), run.begin(), run.end());
    }
  }
  result.group.resize(size);
  for (std::size_t place = 0; place < size; ++place)
    result.group[place] = static_cast<std::int32_t>(
        (result.index_stored ? place : static_cast<std::size_t>(result.columns[place])) / width);
  if (order == RoundingOrder::kStatic) return result;
  for (std::size_t place = 0; place < size; ++place)
    if (place == 0 || result.group[place] != result.group[place - 1])
      result.run_begin.push_back(static_cast<std::int32_t>(place));
  result.run_begin.push_back(static_cast<std::int32_t>(size));
  return result;
}

ColumnOrder by_groups(const ColumnOrder& order, std::int64_t group_size) {
  if (!order.run_begin.empty()) return order;
  const std::vector<double> equal(order.columns.size());
  return order_columns(RoundingOrder::kNone, equal, group_size);
}

}  // namespace llmq
