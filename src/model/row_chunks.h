// How many rows pass through the wide intermediates of a block (q/k/v, gate/up) at once: as many as the
// scratch holds, but not so few that reading the weights once per chunk costs more than the memory is worth.
// A device with memory of its own gives what its operations may take (Backend::scratch_bytes): its matrix
// units want rows by the thousand for weights that are read. No result depends on it.
#pragma once
#include <algorithm>
#include <cstdint>

namespace llmq {

struct RowChunks {
  std::int64_t scratch_bytes = 16 << 20;
  std::int64_t least_rows = 256;
};

// Where operations may take `device_scratch` bytes of a device's own memory; 0: it has none.
inline RowChunks row_chunks(std::uint64_t device_scratch) {
  RowChunks chunks;
  chunks.scratch_bytes = std::max(chunks.scratch_bytes, static_cast<std::int64_t>(device_scratch));
  return chunks;
}

// Of `row_floats` FP32 of scratch each: a multiple of 64, or least_rows.
inline std::int64_t rows_at_once(const RowChunks& limits, std::int64_t row_floats) {
  const std::int64_t fit = limits.scratch_bytes / (row_floats * static_cast<std::int64_t>(sizeof(float)));
  return std::max(limits.least_rows, fit / 64 * 64);
}

// Calls work(first, count) over chunks of so many rows, the last one shorter.
template <typename Work>
void for_row_chunks(const RowChunks& limits, std::int64_t rows, std::int64_t row_floats, const Work& work) {
  const std::int64_t chunk = rows_at_once(limits, row_floats);
  for (std::int64_t first = 0; first < rows; first += chunk) work(first, std::min(chunk, rows - first));
}

}  // namespace llmq
