// What kernels/cuda/linear.h takes, for host code that compiles without CUDA.
#pragma once
#include <stdint.h>

#include "kernels/common/float_groups.h"
#include "kernels/common/fragment_layout.h"

namespace llmq::cuda {

enum class WeightForm { kBFloat16, kCodes4, kCodes8, kFloat4, kFloat8, kInt8 };

constexpr int fragment_bits(WeightForm form) {
  return form == WeightForm::kBFloat16                                ? 16
         : form == WeightForm::kCodes4 || form == WeightForm::kFloat4 ? 4
                                                                      : 8;
}
constexpr int product_depth(WeightForm form) { return form == WeightForm::kInt8 ? 32 : 16; }

// Pointers are of the device. What is per feature lies [groups][padded_features]; padding there is any finite
// number.
struct LinearArguments {
  float* y = nullptr;  // [rows, features], rows y_stride apart
  int64_t y_stride = 0;
  // BF16 [rows, columns], rows x_stride apart; INT8: [rows, positions] with 0 at the padding, x_stride a
  // multiple of 16, aligned to 16.
  const void* x = nullptr;
  int64_t x_stride = 0;
  const uint32_t* weight = nullptr;  // FragmentLayout; aligned to 16 bytes; kInt8: code - 128
  const float* scale = nullptr;      // null: none, then there is one group; of kFloat4 in bytes instead:
  // [groups][padded_features / 2], of two features, the first one's lower
  const uint16_t* scale_bytes = nullptr;
  ScaleOfByte scale_of_byte;
  const float* zero = nullptr;       // kCodes4, kCodes8: needed; kInt8: null where all are 128
  const float* bias = nullptr;       // [features] or null
  const float* row_scale = nullptr;  // [rows, row_scales]
  const int32_t* row_sum = nullptr;  // kInt8 with zeros: [rows, groups], sum of x
  int64_t rows = 0, features = 0, columns = 0;
  int64_t group = 0, groups = 1, row_scales = 0;  // row_scales: 0, 1, or groups (kFloat8, kInt8)
  // What follows from these (with_layout).
  int64_t padded_features = 0, padded_group = 0, positions = 0, used_positions = 0;
  // 16 bytes of a row at a time: positions are columns, rows start at multiples of 16 bytes
  bool x_aligned = false;
};

constexpr FragmentLayout fragment_layout(WeightForm form, int64_t features, int64_t columns, int64_t group) {
  return {features, columns, group < columns ? group : columns, fragment_bits(form), product_depth(form)};
}

inline LinearArguments with_layout(LinearArguments a, WeightForm form) {
  const FragmentLayout layout = fragment_layout(form, a.features, a.columns, a.group);
  a.group = layout.group;
  a.groups = layout.groups();
  a.padded_features = layout.padded_features();
  a.padded_group = layout.padded_group();
  a.positions = layout.positions();
  a.used_positions = layout.position(a.columns - 1) + 1;
  if (form == WeightForm::kInt8) {
    a.columns = a.positions;
    a.x_aligned = true;
  } else {
    a.x_aligned = (a.groups == 1 || a.padded_group == a.group) && a.columns % 8 == 0 && a.x_stride % 8 == 0 &&
                  reinterpret_cast<uintptr_t>(a.x) % 16 == 0;
  }
  return a;
}

}  // namespace llmq::cuda
