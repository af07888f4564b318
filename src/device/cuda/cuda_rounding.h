// What quantization asks of a CUDA device's rows beyond Backend (device/extensions.h): rounding with error
// feedback, differences of rounding to nearest, sums of SmoothQuant's search.
#pragma once
#include "device/column_rounder.h"
#include "device/cuda/cuda_work.h"
#include "device/difference_maker.h"
#include "device/row_sums.h"

namespace llmq {

class CudaRounding final : public ColumnRounder, public DifferenceMaker, public RowSums {
 public:
  explicit CudaRounding(CudaWork& work) : work_(work) {}

  std::int64_t rows_at_once(std::int64_t row_bytes) const override;
  void tile_product(const TensorView& sum, const TensorView& a, const TensorView& b,
                    bool accumulate) override;
  void tile_round(const TileColumns& columns, std::int64_t rows) override;
  void tile_descend(const TileColumns& columns, std::int64_t rows) override;
  void tile_solve(const TileColumns& columns, std::int64_t rows) override;
  void try_scales(const TrialSearch& search, std::int64_t rows) override;
  void choose_scales(const RangeSearch& search, std::int64_t rows) override;
  void target_group(const GroupTarget& group, std::int64_t rows) override;
  void take_group(const GroupChoice& group, std::int64_t rows) override;
  void refit_group(const GroupRefit& group, std::int64_t rows) override;
  void place_columns(const TensorView& placed, const TensorView& weight,
                     const PlacedColumns& places) override;
  void write_codes(const PlacedCodes& placed, std::int64_t rows) override;

  void make_differences(const RowDifferences& rows) override;

  void sum_input_errors(const InputErrors& errors) override;
  void sum_squares(const RowSquares& squares) override;
  void soften_rows(const SoftRows& rows) override;
  void share_columns(const ColumnShares& shares) override;

 private:
  template <class Arguments, class Problem>
  void start_rows(const char* operation, int (*kernel)(const Arguments&, void*), const Problem& problem,
                  std::int64_t columns, std::int64_t rows) const {
    work_.start(operation, kernel, {problem, rows}, shape_of(columns, rows));
  }
  // Of what a kernel is given, for its errors.
  TensorView shape_of(std::int64_t rows, std::int64_t columns) const {
    return TensorView(static_cast<const void*>(nullptr), DType::kF32, {rows, columns}, work_.place());
  }

  CudaWork& work_;
};

}  // namespace llmq
