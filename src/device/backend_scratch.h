// What operations of backends hold beside what their callers allocate, for who plans memory. Each figure
// comes from the file whose operation it is.
#pragma once
#include <cstdint>

namespace llmq {

// Whether the host keeps the memory of a freed buffer of so many bytes for the next one
// (device/cpu/recycled_memory.cpp).
bool is_recycled(std::uint64_t bytes);

// Rows that a worker of Backend::quadratic_form has in hand on the host: as they are multiplied, `element`
// bytes each, and in FP32 (device/cpu/packed_weight.cpp).
std::uint64_t quadratic_form_bytes(std::uint64_t channels, std::uint64_t element);

// Partial results of one row of attention in BF16 on a device, whose queries see `positions` keys; and how
// many such rows go at once where operations may take `scratch` bytes (device/cuda/cuda_attention.cpp).
std::uint64_t attention_row_bytes(std::int64_t heads, std::int64_t head_dim, std::int64_t positions);
std::uint64_t attention_rows_at_once(std::uint64_t row_bytes, std::uint64_t scratch);

}  // namespace llmq
