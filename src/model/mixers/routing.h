// Which experts a row goes to, and by how much each counts: softmax over the router's answer, or the sigmoid
// of each, in FP64 on the host.
//
// Softmax is rounded to FP32 once. Sigmoids are rounded before a correction is added to choose by: a choice
// is then that of Transformers, which computes both in FP32. A group counts by its best ones together. Where
// only those chosen have sigmoids, the answers themselves are compared: great ones differ where sigmoids are
// all 1.
// Of equal ones the lower expert is the greater; a row's experts and their weights depend on that row alone.
// A NaN is never greater than anything, so that a damaged row chooses some experts and gives NaN.
// Cost: one exponential for each expert and row, and top_k looks at each.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/threads.h"
#include "model/block_spec.h"

namespace llmq {

// As MixtureSpec has it. Of more groups than one each has group_best experts at least, and those that are
// kept have top_k together.
struct Routing {
  std::int64_t experts = 0;
  int top_k = 0;
  bool normalized = false;
  RouterScore score = RouterScore::kSoftmax;
  std::span<const float> correction = {};  // [experts]; of kSigmoid alone
  int groups = 1, kept_groups = 1;
  double weight_scale = 1;
  int group_best = 2;
  std::span<const float> expert_scales = {};  // [experts], or none: of an expert's weights
};

// Rows by the expert they go to: those of expert e are [first[e], first[e + 1]) of `rows`, rising, each with
// its weight.
struct RoutedRows {
  std::vector<std::int32_t> rows;
  std::vector<float> weights;
  std::vector<std::size_t> first;  // [experts + 1]
};
// logits [rows, experts]; 1 <= top_k <= experts.
RoutedRows route(std::span<const float> logits, const Routing& routing, ThreadPool& pool);

// sigmoid of each, in FP64 and rounded once.
std::vector<float> sigmoids(std::span<const float> logits);

}  // namespace llmq
