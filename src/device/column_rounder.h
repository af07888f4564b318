// Rounding with error feedback by a device: what device/host_tiles.h, quant/methods/gptq/group_scales.h and
// quant/methods/gptq/coordinate_descent.h do in host memory for one tile of rows, in the device's memory for
// many rows at once, with the same bits: Extensions::column_rounder. The host rounds for all others.
//
// kernels/common/row_tile.h and row_search.h say what each computes, of `rows` rows; pointers are the
// device's, but for the structs themselves, which are read before the call returns. Everything happens in the
// order of the calls.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/common/row_search.h"
#include "tensor/tensor_view.h"

namespace llmq {

// How many rows go at once where each takes `row_bytes`; at least 1. Sixteen times the scratch of the device:
// what earlier columns carry to the next 128 is a product of tiles of 64 by 128, so that processors are busy
// by thousands of rows.
inline std::int64_t rounded_rows(std::int64_t scratch_bytes, std::int64_t row_bytes) {
  return std::max<std::int64_t>(1, 16 * scratch_bytes / row_bytes);
}

class ColumnRounder {
 public:
  virtual ~ColumnRounder() = default;
  // rounded_rows() of the device.
  virtual std::int64_t rows_at_once(std::int64_t row_bytes) const = 0;

  // sum[j][r] = sum over u of a[u][j] b[u][r], one chain of fused multiply-adds over u from zero or,
  // `accumulate`, from what is there: sum F32 [columns, rows], a F32 [depth, columns], b F32 [depth, rows] on
  // the device.
  virtual void tile_product(const TensorView& sum, const TensorView& a, const TensorView& b,
                            bool accumulate) = 0;

  // At most 128 columns; what they carry is left as it was, and null where it is nothing.
  virtual void tile_round(const TileColumns& columns, std::int64_t rows) = 0;
  virtual void tile_descend(const TileColumns& columns, std::int64_t rows) = 0;
  virtual void tile_solve(const TileColumns& columns, std::int64_t rows) = 0;
  virtual void try_scales(const TrialSearch& search, std::int64_t rows) = 0;
  // Any number of columns.
  virtual void choose_scales(const RangeSearch& search, std::int64_t rows) = 0;
  virtual void target_group(const GroupTarget& group, std::int64_t rows) = 0;
  virtual void take_group(const GroupChoice& group, std::int64_t rows) = 0;
  virtual void refit_group(const GroupRefit& group, std::int64_t rows) = 0;

  // placed F32 [places, rows] from weight F32 [rows, columns]; as many places as columns.
  virtual void place_columns(const TensorView& placed, const TensorView& weight,
                             const PlacedColumns& places) = 0;
  virtual void write_codes(const PlacedCodes& placed, std::int64_t rows) = 0;
};

}  // namespace llmq
