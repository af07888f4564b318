#include "quant/row_tile.h"

namespace llmq {

void add_products(float* __restrict sum, const float* a, std::int64_t a_row, std::int64_t width,
                  const float* __restrict b, std::int64_t depth, float factor) {
  constexpr std::int64_t kColumns = 4;  // at a time, so that their sums stay in registers
  for (std::int64_t c = 0; c < width; c += kColumns) {
    const std::int64_t count = c + kColumns <= width ? kColumns : width - c;
    float total[kColumns][kTileRows] = {};
    for (std::int64_t u = 0; u < depth; ++u) {
      const float* const row = b + u * kTileRows;
      for (std::int64_t i = 0; i < count; ++i)
        for (std::int64_t r = 0; r < kTileRows; ++r) total[i][r] += a[u * a_row + c + i] * row[r];
    }
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t r = 0; r < kTileRows; ++r) sum[(c + i) * kTileRows + r] += factor * total[i][r];
  }
}

}  // namespace llmq
