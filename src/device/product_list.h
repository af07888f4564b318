// The kernels of a backend for one product, as a list of rows that say what they support and run it: the
// first that supports a problem runs it, so that the order of a list is the order of preference.
//
//   struct Row {
//     bool (*supports)(const Problem& problem);
//     void (*run)(Work& work, const Problem& problem);
//   };
#pragma once
#include <cstddef>
#include <string>

#include "base/error.h"

namespace llmq {

// Error(kInternal) that prints the problem, text(problem), where no row supports it.
template <class Row, std::size_t kRows, class Problem, class Text>
const Row& first_supporting(const Row (&rows)[kRows], const Problem& problem, const Text& text) {
  for (const Row& row : rows)
    if (row.supports(problem)) return row;
  fail(ErrorKind::kInternal, "no kernel takes the product {}", text(problem));
}

}  // namespace llmq
