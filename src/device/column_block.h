// Blocks of columns of a square matrix, each block's rows next to each other, as products with a tile of rows
// read them: the layout of quant/methods/gptq/column_panels.h on the host and of device/placed_gram.h on a
// device.
#pragma once
#include <cstddef>
#include <cstdint>

namespace llmq {

struct ColumnBlock {
  std::int64_t begin = 0, width = 0;  // places
  std::int64_t rows = 0;              // that are kept, from 0 on
  std::size_t offset = 0;             // of the block's first number among all
};

}  // namespace llmq
