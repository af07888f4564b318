// How the products of linears that run together are cut into items for the pool: blocks of rows against
// groups of panels, the blocks of one group one after another, so that the workers share its panels in L3;
// one linear after the other. No result depends on it.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <span>

#include "base/threads.h"
#include "device/cpu/cpu_work.h"
#include "tensor/tensor_view.h"

namespace llmq {

// Of one round of the workers: gate and up of sixteen experts.
inline constexpr std::size_t kMostCallsAtOnce = 32;
inline constexpr std::int64_t kBlockRows = 96, kGroupColumns = 512;  // of one item, at most

// y = x w^T + bias; Weight is a class of prepared weights.
template <class Weight>
struct ProductCall {
  TensorView y, x;
  const Weight* w = nullptr;
  const float* bias = nullptr;
  double products() const {
    return static_cast<double>(x.rows()) * static_cast<double>(w->in_features) *
           static_cast<double>(w->out_features);
  }
};

struct ProductCut {
  std::int64_t block_rows = 1, blocks = 0;         // of rows
  std::int64_t panels = 0, group = 1, groups = 0;  // panels in all, of one item, and how many such groups
  std::int64_t items() const { return blocks * groups; }
};

// Items of at most `most_panels`, of even size, and enough of them for every worker where rows are few.
inline ProductCut cut_product(std::int64_t rows, std::int64_t panels, std::int64_t block_rows,
                              std::int64_t most_panels, int workers) {
  ProductCut cut{block_rows, ceil_of(rows, block_rows), panels, 1, 0};
  if (rows == 0 || panels == 0) return cut;
  const std::int64_t wanted = ceil_of(std::int64_t{4} * workers, cut.blocks);
  const std::int64_t groups = std::max(ceil_of(panels, most_panels), std::min(wanted, panels));
  cut.group = ceil_of(panels, groups);
  cut.groups = ceil_of(panels, cut.group);
  return cut;
}

// The items of linears that run together; `panel` and `most_columns` in columns.
template <class Weight>
class ProductItems {
 public:
  ProductItems(std::span<const ProductCall<Weight>> calls, std::int64_t panel, std::int64_t block_rows,
               std::int64_t most_columns, ThreadPool& pool)
      : pool_(pool), count_(calls.size()) {
    for (std::size_t i = 0; i < count_; ++i) {
      cuts_.at(i) = cut_product(calls[i].x.rows(), (calls[i].w->out_features + panel - 1) / panel, block_rows,
                                most_columns / panel, pool.size());
      products_ += calls[i].products();
    }
  }

  // body(item, worker) for each of `items`, in the calling thread where the products are so few that waking a
  // worker costs more than it brings.
  template <class Body>
  void each(std::int64_t items, const Body& body) const {
    constexpr double kInline = 1 << 18;
    const auto call = [&](std::size_t item, int worker) { body(static_cast<std::int64_t>(item), worker); };
    if (products_ >= kInline) return pool_.parallel_for(static_cast<std::size_t>(items), std::cref(call));
    for (std::int64_t i = 0; i < items; ++i) body(i, 0);
  }

  // run(call, first row, first panel, panels, worker) for each item of each call.
  template <class Run>
  void each_product(const Run& run) const {
    std::int64_t items = 0;
    for (std::size_t i = 0; i < count_; ++i) items += cuts_[i].items();
    each(items, [&](std::int64_t item, int worker) {
      std::size_t call = 0;
      while (item >= cuts_[call].items()) item -= cuts_[call++].items();
      const ProductCut& cut = cuts_[call];
      const std::int64_t first = item / cut.blocks * cut.group;
      run(call, item % cut.blocks * cut.block_rows, first, std::min(cut.group, cut.panels - first), worker);
    });
  }

 private:
  ThreadPool& pool_;
  std::array<ProductCut, kMostCallsAtOnce> cuts_;
  std::size_t count_;
  double products_ = 0;
};

}  // namespace llmq
