// A square matrix by blocks of at most 128 columns, each block's rows next to each other, as products with a
// tile of rows read them.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/zeroed_numbers.h"
#include "device/column_block.h"
#include "quant/methods/gptq/column_order.h"

namespace llmq {

class ColumnPanels {
 public:
  static constexpr std::int64_t kMostColumns = 128;  // of a block
  ColumnPanels() = default;
  // No block crosses the border of a run (none: one run). upper: rows below the diagonal are not kept.
  // Without numbers there are the blocks alone, for numbers that a device has.
  ColumnPanels(const ColumnOrder& order, bool upper, bool with_numbers = true);

  const std::vector<ColumnBlock>& blocks() const { return blocks_; }
  const float* at(std::int64_t row, const ColumnBlock& block) const {
    return values_.data() + block.offset + row * block.width;
  }
  float* at(std::int64_t row, const ColumnBlock& block) {
    return values_.data() + block.offset + row * block.width;
  }
  // Panel follows panel, and a block's panel begins at the block's offset.
  std::span<const float> values() const { return {values_.data(), values_.size()}; }
  // The blocks of the run that begins at `begin`: [first, last).
  std::size_t first_block(std::int64_t begin) const { return block_of_[static_cast<std::size_t>(begin)]; }

 private:
  std::vector<ColumnBlock> blocks_;
  std::vector<std::size_t> block_of_;  // by place; and the number of blocks behind the last
  ZeroedNumbers<float> values_;
};

}  // namespace llmq
