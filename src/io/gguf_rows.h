// Rows that llama.cpp's rope turns may lie in another order in a GGUF: within each head [head_dim/2, 2] where
// Hugging Face has [2, head_dim/2], because that rope turns neighbours.
#pragma once
#include <cstdint>

namespace llmq {

// Where row `row` of a q or k projection of `heads` heads and `rows` rows lies in the GGUF.
constexpr std::int64_t source_row(std::int64_t row, std::int64_t rows, int heads) {
  const std::int64_t head_dim = rows / heads, half = head_dim / 2;
  const std::int64_t head = row / head_dim, within = row % head_dim;
  return head * head_dim + (within % half) * 2 + within / half;
}

// Where row `row` of the GGUF lies in the projection as Hugging Face stores it: the inverse of source_row().
constexpr std::int64_t permuted_row(std::int64_t row, std::int64_t rows, int heads) {
  const std::int64_t head_dim = rows / heads, half = head_dim / 2;
  const std::int64_t head = row / head_dim, within = row % head_dim;
  return head * head_dim + (within % 2) * half + within / 2;
}

}  // namespace llmq
