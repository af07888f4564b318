// Which experts a row goes to, and by how much each counts: softmax over the router's answer, in FP64 on the
// host, rounded to FP32 once.
//
// Of equal ones the lower expert is the greater; a row's experts and their weights depend on that row alone.
// A NaN is never greater than anything, so that a damaged row chooses some experts and gives NaN.
// Cost: one exponential for each expert and row, and top_k looks at each.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/threads.h"

namespace llmq {

struct Routing {
  std::int64_t experts = 0;
  int top_k = 0;
  bool normalized = false;  // the weights of a row's experts are divided by their sum
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
