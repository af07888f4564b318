// Numbers of any plain type, as the reference reads and writes them.
#pragma once
#include "base/error.h"
#include "base/half.h"
#include "tensor/tensor_view.h"

namespace llmq::reference {

inline double read(const TensorView& view, std::int64_t row, std::int64_t col) {
  switch (view.dtype) {
    case DType::kF32:
      return static_cast<double>(view.row<const float>(row)[col]);
    case DType::kBF16:
      return static_cast<double>(to_float(view.row<const BFloat16>(row)[col]));
    case DType::kF16:
      return static_cast<double>(to_float(view.row<const Float16>(row)[col]));
    default:
      fail(ErrorKind::kInternal, "the reference reads F32, BF16 and F16, not {}", dtype_row(view.dtype).name);
  }
}

// Double to FP32 to the view's type, as the FP32 result of any kernel would be stored.
inline void write(const TensorView& view, std::int64_t row, std::int64_t col, double value) {
  const float rounded = static_cast<float>(value);
  switch (view.dtype) {
    case DType::kF32:
      view.row<float>(row)[col] = rounded;
      return;
    case DType::kBF16:
      view.row<BFloat16>(row)[col] = to_bfloat16(rounded);
      return;
    default:
      fail(ErrorKind::kInternal, "the reference writes F32 and BF16, not {}", dtype_row(view.dtype).name);
  }
}

}  // namespace llmq::reference
