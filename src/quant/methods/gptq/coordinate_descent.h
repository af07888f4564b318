// Fits scale, zero and codes of one group after another while all others stand: coordinate descent on
//
//   loss = D G D^T,   D = W - value(code)      G = H + lambda I
//
// With Y = D G on the group's columns and q its steps (code - zero), all exact in real arithmetic:
//   scale   s + ds changes the loss by -2 ds (Y.q) + ds^2 (q G q^T); ds = Y.q / q G q^T, rounded to the
//           stored type
//   zero    z + 1 shifts every value by -s
//   again   with all else as it is, best would be t = value + Y G_gg^-1; the group is rounded to t with error
//           feedback inside it, under scales and zeros around its own (a group of one block only)
//   codes   one by one to the nearest of what would be best, value + Y_k / G_kk
// A change is made only where it lowers the loss with the scale as stored, so no sweep makes it worse but for
// rounding in FP32. Cost: 2 K^2 products per row and sweep.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/common/scale_search.h"
#include "quant/methods/gptq/block_cholesky.h"
#include "quant/methods/gptq/column_order.h"
#include "quant/methods/gptq/column_panels.h"
#include "quant/methods/gptq/row_tile.h"

namespace llmq {

struct DescentProblem {
  const ColumnOrder* order = nullptr;  // groups are runs of places
  ColumnPanels square;                 // G
  std::vector<float> inverse;          // 1 / G_kk by place
  std::vector<float> row_sum;          // sum of G_kj over the columns j of k's own group, by place
  std::vector<BlockCholesky> factors;  // by block of `square`; empty: scales are not searched again
  bool scales = true;                  // may scales and zeros change
  int sweeps = 2;                      // over the codes; 0: scales alone, once

  // visit(begin, end) for each group, as often as there are sweeps.
  template <class Visit>
  void each_group(const Visit& visit) const {
    const std::vector<std::int32_t>& run = order->run_begin;
    for (int sweep = 0; sweep < std::max(sweeps, 1); ++sweep)
      for (std::size_t g = 0; g + 1 < run.size(); ++g) visit(run[g], run[g + 1]);
  }
  // What a group of one block is rounded again with; null: it is not.
  const BlockCholesky* factor_of(std::int64_t begin, std::int64_t end) const {
    const std::size_t first = square.first_block(begin);
    return !factors.empty() && square.first_block(end) == first + 1 && factors[first].exists ? &factors[first]
                                                                                             : nullptr;
  }
  std::span<const ColumnBlock> blocks_of(std::int64_t begin, std::int64_t end) const {
    const std::size_t first = square.first_block(begin);
    return std::span(square.blocks()).subspan(first, square.first_block(end) - first);
  }
};

class GroupDescent {
 public:
  GroupDescent(const DescentProblem& problem, const GridRule& rule, RowTile& tile);
  void run();

 private:
  void slopes(const ColumnBlock& block);
  void visit(std::int64_t begin, std::int64_t end);
  void refit();  // everything but the codes one by one
  void search_again(const BlockCholesky& factor, const ColumnBlock& block);
  void fit_scale();
  void shift_zero();
  void take_differences();
  TileColumns columns_of(const ColumnBlock& block);

  const DescentProblem& problem_;
  GridRule rule_;
  RowTile& tile_;
  std::size_t rows_;
  std::int64_t begin_ = 0, width_ = 0, group_ = 0;  // of the group visited
  std::vector<float> y_, u_, target_, fresh_, spent_, carried_;
};

}  // namespace llmq
