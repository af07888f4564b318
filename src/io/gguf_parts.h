// Where the numbers of a GGUF's tensor lie in Hugging Face's, where that is more than another name: rows or
// columns in another order, matrices turned, several tensors of a GGUF that are one, another number for each.
//
// Both directions read it: who writes a GGUF gathers by it, who reads one scatters. Whoever makes a part sees
// to it that its order is one (no place twice).
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "tensor/tensor_view.h"

namespace llmq {

// Number i of the GGUF comes from number (*this)(i) of Hugging Face's, run after run, each a nest of counts.
struct GgufOrder {
  struct Run {
    std::int64_t first = 0;
    std::array<std::int64_t, 3> counts{1, 1, 1}, strides{0, 0, 0};  // the last varies first
    std::int64_t size() const { return counts[0] * counts[1] * counts[2]; }
  };
  std::vector<Run> runs;  // none: in order

  std::int64_t operator()(std::int64_t i) const {
    for (const Run& run : runs) {
      if (i >= run.size()) {
        i -= run.size();
        continue;
      }
      const std::int64_t inner = i % run.counts[2], middle = i / run.counts[2] % run.counts[1],
                         outer = i / run.counts[2] / run.counts[1];
      return run.first + outer * run.strides[0] + middle * run.strides[1] + inner * run.strides[2];
    }
    return i;
  }
};

struct GgufPart {
  Shape whole, shape;  // of Hugging Face's tensor, of which this is a part or all; of the GGUF's
  GgufOrder rows, columns;
  bool turned = false;     // each matrix of a stack [matrices, columns, rows] is turned
  bool minus_exp = false;  // the GGUF has -exp(x)

  // A vector is a column.
  static std::int64_t width_of(const Shape& shape) { return shape.rank() < 2 ? 1 : shape.back(); }
  bool only_rows() const { return columns.runs.empty() && !turned && !minus_exp && whole.rank() == 2; }
};

// -exp(x), rounded once; and the x that it is of.
float minus_exp(float x);
float inverse_minus_exp(float value);

// Rows `first` to `first + count` of a GGUF's tensor, of what read(row of Hugging Face's, rows, into) gives.
template <typename Read>
std::vector<float> gather_part(const GgufPart& part, std::int64_t first, std::int64_t count,
                               const Read& read) {
  const std::int64_t width = GgufPart::width_of(part.shape), of_whole = GgufPart::width_of(part.whole),
                     each = part.turned ? part.shape[1] : 0;
  std::vector<float> values(static_cast<std::size_t>(count * width)), row(static_cast<std::size_t>(of_whole));
  const auto at = [&](std::int64_t r, std::int64_t c) -> float& {
    return values[static_cast<std::size_t>((r - first) * width + c)];
  };
  if (part.turned) {  // of each matrix that has one of these rows, every column is a row
    for (std::int64_t matrix = first / each; matrix * each < first + count; ++matrix)
      for (std::int64_t c = 0; c < width; ++c) {
        read(part.rows(matrix * width + c), 1, row);
        for (std::int64_t r = matrix * each; r < (matrix + 1) * each; ++r)
          if (r >= first && r < first + count) at(r, c) = row[static_cast<std::size_t>(r - matrix * each)];
      }
    return values;
  }
  for (std::int64_t r = first; r < first + count; ++r) {
    read(part.rows(r), 1, row);
    for (std::int64_t c = 0; c < width; ++c) {
      const float value = row[static_cast<std::size_t>(part.columns(c))];
      at(r, c) = part.minus_exp ? minus_exp(value) : value;
    }
  }
  return values;
}

}  // namespace llmq
