// What the own square of each block of columns gives: with all other columns as they are, a block is rounded
// like a matrix of its own. G_bb = R R^T with R upper triangular; L = R diag(1 / R_kk).
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "base/threads.h"
#include "quant/methods/gptq/column_panels.h"

namespace llmq {

struct BlockCholesky {
  std::vector<float> unit_upper, inverse;  // L and G_bb^-1, [width, width]
  std::vector<float> cost;                 // R_kk^2
  bool exists = false;                     // no Cholesky factor in FP64: nothing else is filled
  // What the squares of all blocks take at most, for each column.
  static constexpr std::uint64_t kColumnBytes = 2 * ColumnPanels::kMostColumns * sizeof(float);
};

// element(i, j) of G by place.
std::vector<BlockCholesky> factorize_blocks(const std::vector<ColumnBlock>& blocks,
                                            const std::function<double(std::int64_t, std::int64_t)>& element,
                                            ThreadPool& pool);

}  // namespace llmq
