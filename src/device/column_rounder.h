// Rounding with error feedback by a device: what device/host_tiles.h does in host memory for one tile of rows, in the device's memory for
// many rows at once, with the same bits. A backend that can is a ColumnRounder too; the host rounds for all others.
#pragma once
#include <cstdint>

#include "kernels/common/row_tile.h"
#include "tensor/tensor_view.h"

namespace llmq {

class ColumnRounder {
 public:
  virtual ~ColumnRounder() = default;
  // How many rows go at once where each takes so many bytes of the device; at least 1.
  virtual std::int64_t rows_at_once(std::int64_t row_bytes) const = 0;

  // sum[j][r] = sum over u of a[u][j] b[u][r], one chain of fused multiply-adds over u from zero: sum F32 [columns, rows], a F32
  // [depth, columns], b F32 [depth, rows] on the device.
  virtual void tile_product(const TensorView& sum, const TensorView& a, const TensorView& b) = 0;
  // kernels/common/row_tile.h has the arithmetic; at most 128 columns, arrays [columns][rows], pointers of the device.
  virtual void tile_round(const TileColumns& columns, std::int64_t rows) = 0;
  virtual void tile_descend(const TileColumns& columns, std::int64_t rows) = 0;
  virtual void tile_solve(const TileColumns& columns, std::int64_t rows) = 0;
};

}  // namespace llmq
