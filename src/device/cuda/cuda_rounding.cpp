#include "device/cuda/cuda_rounding.h"

namespace llmq {

std::int64_t CudaRounding::rows_at_once(std::int64_t row_bytes) const {
  return rounded_rows(work_.device().scratch_bytes(), row_bytes);
}

void CudaRounding::tile_product(const TensorView& sum, const TensorView& a, const TensorView& b,
                                bool accumulate) {
  require_on(work_.place(), "tile_product", {&sum, &a, &b});
  work_.sum_over_rows("tile_product",
                      {sum.rows(), sum.cols(), a.rows(), sum.as<float>(), sum.row_stride, a.as<const float>(),
                       a.row_stride, b.as<const float>(), b.row_stride, accumulate},
                      sum);
}

void CudaRounding::tile_round(const TileColumns& p, std::int64_t rows) {
  start_rows("tile_round", work_.kernels().tile_round, p, p.columns, rows);
}

void CudaRounding::tile_descend(const TileColumns& p, std::int64_t rows) {
  start_rows("tile_descend", work_.kernels().tile_descend, p, p.columns, rows);
}

void CudaRounding::tile_solve(const TileColumns& p, std::int64_t rows) {
  start_rows("tile_solve", work_.kernels().tile_solve, p, p.columns, rows);
}

void CudaRounding::try_scales(const TrialSearch& p, std::int64_t rows) {
  start_rows("try_scales", work_.kernels().try_scales, p, p.columns.columns, rows);
}

void CudaRounding::choose_scales(const RangeSearch& p, std::int64_t rows) {
  start_rows("choose_scales", work_.kernels().choose_scales, p, p.columns, rows);
}

void CudaRounding::target_group(const GroupTarget& p, std::int64_t rows) {
  start_rows("target_group", work_.kernels().target_group, p, p.columns, rows);
}

void CudaRounding::take_group(const GroupChoice& p, std::int64_t rows) {
  start_rows("take_group", work_.kernels().take_group, p, p.columns, rows);
}

void CudaRounding::refit_group(const GroupRefit& p, std::int64_t rows) {
  start_rows("refit_group", work_.kernels().refit_group, p, p.columns, rows);
}

void CudaRounding::place_columns(const TensorView& placed, const TensorView& weight,
                                 const PlacedColumns& places) {
  require_on(work_.place(), "place_columns", {&placed, &weight});
  work_.start("place_columns", work_.kernels().place_columns,
              {places, weight.as<const float>(), placed.as<float>(), weight.rows()}, weight);
}

void CudaRounding::write_codes(const PlacedCodes& p, std::int64_t rows) {
  start_rows("write_codes", work_.kernels().write_codes, p, p.places.columns, rows);
}

void CudaRounding::make_differences(const RowDifferences& d) {
  work_.start("make_differences", work_.kernels().make_differences, d, shape_of(d.items, d.columns));
}

void CudaRounding::sum_input_errors(const InputErrors& e) {
  work_.start("sum_input_errors", work_.kernels().sum_input_errors, e, shape_of(e.rows, e.columns));
}

void CudaRounding::sum_squares(const RowSquares& s) {
  work_.start("sum_squares", work_.kernels().sum_squares, s, shape_of(s.rows, s.columns));
}

void CudaRounding::soften_rows(const SoftRows& r) {
  work_.start("soften_rows", work_.kernels().soften_rows, r, shape_of(r.rows, r.columns));
}

void CudaRounding::share_columns(const ColumnShares& s) {
  work_.start("share_columns", work_.kernels().share_columns, s, shape_of(s.rows.rows, s.rows.columns));
}

}  // namespace llmq
