#include "quant/methods/gptq/column_panels.h"

#include <algorithm>

namespace llmq {

ColumnPanels::ColumnPanels(const ColumnOrder& order, bool upper, bool with_numbers) {
  const std::int64_t size = order.size();
  std::vector<std::int32_t> border = order.run_begin;
  if (border.empty()) border = {0, static_cast<std::int32_t>(size)};
  std::size_t total = 0;
  for (std::size_t r = 0; r + 1 < border.size(); ++r)
    for (std::int64_t begin = border[r]; begin < border[r + 1]; begin += kMostColumns) {
      ColumnBlock block;
      block.begin = begin;
      block.width = std::min<std::int64_t>(kMostColumns, border[r + 1] - begin);
      block.rows = upper ? begin + block.width : size;
      block.offset = total;
      total += static_cast<std::size_t>(block.rows * block.width);
      block_of_.resize(static_cast<std::size_t>(begin + block.width), blocks_.size());
      blocks_.push_back(block);
    }
  block_of_.push_back(blocks_.size());
  if (with_numbers) values_ = ZeroedNumbers<float>(total);
}

}  // namespace llmq
