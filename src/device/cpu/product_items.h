// How the products of linears that run together are cut into items for the pool: blocks of rows against groups of panels, the blocks of
// one group one after another, so that the workers share its panels in L3; one linear after the other. No result depends on it.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "tensor/tensor_view.h"

namespace llmq {

inline constexpr std::size_t kMostCallsAtOnce = 4;

// y = x w^T + bias; Weight is a class of prepared weights.
template <class Weight>
struct ProductCall {
  TensorView y, x;
  const Weight* w = nullptr;
  const float* bias = nullptr;
  double products() const {
    return static_cast<double>(x.rows()) * static_cast<double>(w->in_features) * static_cast<double>(w->out_features);
  }
};

struct ProductCut {
  std::int64_t block_rows = 1, blocks = 0;      // of rows
  std::int64_t panels = 0, group = 1, groups = 0;  // panels in all, of one item, and how many such groups
  std::int64_t items() const { return blocks * groups; }
};

// Items of at most `most_panels`, of even size, and enough of them for every worker where rows are few.
inline ProductCut cut_product(std::int64_t rows, std::int64_t panels, std::int64_t block_rows, std::int64_t most_panels, int workers) {
  const auto ceil_of = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  ProductCut cut{block_rows, ceil_of(rows, block_rows), panels, 1, 0};
  if (cut.items() == 0 && (rows == 0 || panels == 0)) return cut;
  const std::int64_t wanted = ceil_of(4 * workers, cut.blocks);
  const std::int64_t groups = std::max(ceil_of(panels, most_panels), std::min(wanted, panels));
  cut.group = ceil_of(panels, groups);
  cut.groups = ceil_of(panels, cut.group);
  return cut;
}

// run(call, first row, first panel, panels, worker) for each item of each call, by `each`(items, body(item, worker)).
template <class Each, class Run>
void for_product_items(std::span<const ProductCut> cuts, const Each& each, const Run& run) {
  std::int64_t items = 0;
  for (const ProductCut& cut : cuts) items += cut.items();
  each(items, [&](std::int64_t item, int worker) {
    std::size_t call = 0;
    while (item >= cuts[call].items()) item -= cuts[call++].items();
    const ProductCut& cut = cuts[call];
    const std::int64_t first = item / cut.blocks * cut.group;
    run(call, item % cut.blocks * cut.block_rows, first, std::min(cut.group, cut.panels - first), worker);
  });
}

}  // namespace llmq
