// What a backend does by its other operations where it has nothing better.
#include "device/backend.h"

#include <algorithm>

namespace llmq {

void Backend::score_products(const TensorView& x, const PreparedWeight& w, float softcap,
                             std::span<const std::int32_t> targets, std::span<RowScore> scores) {
  constexpr std::int64_t kLogitsBytes = 16 << 20;
  const std::int64_t least = device() == Device{} ? 16 : 256;  // a device reads all of w for each tile
  const std::int64_t width = w.out_features, row_bytes = width * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t tile = std::min(x.rows(), std::max(least, kLogitsBytes / row_bytes));
  if (tile == 0) return;
  const Buffer logits = allocate(static_cast<std::size_t>(tile * row_bytes));
  for (std::int64_t first = 0; first < x.rows(); first += tile) {
    const std::int64_t rows = std::min(tile, x.rows() - first);
    const auto at = static_cast<std::size_t>(first), count = static_cast<std::size_t>(rows);
    const TensorView part = logits.view(DType::kF32, {rows, width});
    linear(part, x.row_slice(first, rows), w, {});
    if (softcap != 0) this->softcap(part, softcap);
    score_rows(part, targets.subspan(at, count), scores.subspan(at, count));
  }
}

void Backend::clear(const TensorView& to) {
  const std::vector<std::byte> zeros(static_cast<std::size_t>(to.bytes()));
  upload(to, zeros.data());
}

}  // namespace llmq
