// How many rows pass through the wide intermediates of a block (q/k/v, gate/up) at once: as many as the scratch holds, but not so few
// that reading the weights once per chunk costs more than the memory is worth. No result depends on it.
#pragma once
#include <algorithm>
#include <cstdint>

namespace llmq {

struct RowChunks {
  std::int64_t scratch_bytes = 16 << 20;
  std::int64_t least_rows = 256;
};

// Calls work(first, count) over chunks of rows, `row_floats` FP32 of scratch each; equal chunks of a multiple
// of 64 (or least_rows), the last one shorter.
template <typename Work>
void for_row_chunks(const RowChunks& limits, std::int64_t rows, std::int64_t row_floats, const Work& work) {
  const std::int64_t fit = limits.scratch_bytes / (row_floats * static_cast<std::int64_t>(sizeof(float)));
  const std::int64_t chunk = std::max(limits.least_rows, fit / 64 * 64);
  for (std::int64_t first = 0; first < rows; first += chunk) work(first, std::min(chunk, rows - first));
}

}  // namespace llmq
