// What one block of kernels/cuda/linear.h computes. Shapes differ in speed alone: every element of y is one
// chain of products in all of them.
//
// Chosen by reasoning, none of it measured (docs/adr/0013): reading w from memory, a processor of 132 wants
// about 30 KB on its way; multiplying, the products of a step have to last longer than their operands take
// through shared memory, and a block's operands longer than they take from the second-level cache.
#pragma once
#include "kernels/cuda/linear_arguments.h"

namespace llmq::cuda {

struct LinearShape {
  int row_tiles, pairs;          // of a warp: 16 rows, 16 features each
  int row_warps, feature_warps;  // of a block
  int span;                      // positions of a stage
  int most_stages, shared_bytes;
  bool aligned_rows;  // rows of x are copied 16 bytes at a time, else gathered
  bool one_group;     // only for weights of one group: a lane sums once
};

// of a block: what every device has, and what all have since sm_80
constexpr int kSharedRoom = 48 * 1024, kWideRoom = 96 * 1024;

constexpr int kFewRows = 16, kSomeRows = 64;
constexpr LinearShape kLow{1, 1, 1, 4, 64, 12, kSharedRoom, true, false};  // 16 x 64
// 16 x 32, where 16 x 64 would leave processors idle
constexpr LinearShape kNarrow{1, 1, 1, 2, 64, 24, kWideRoom, true, false};
constexpr LinearShape kMiddle{4, 1, 1, 4, 64, 2, kSharedRoom, true, false};  // 64 x 64
// 16 x 64, rows that do not start at multiples of 16 bytes
constexpr LinearShape kGathered{1, 1, 1, 4, 64, 2, kSharedRoom, false, false};
constexpr int64_t kNarrowFeatures = 8192, kTallFeatures = 256;  // narrow up to, tall from

// 128 x 256 where a lane sums once; codes have groups, whose sums leave registers for 128 x 128.
constexpr LinearShape tall_shape(WeightForm form) {
  if (form == WeightForm::kCodes4 || form == WeightForm::kCodes8 || form == WeightForm::kFloat4)
    return {4, 2, 2, 4, 64, 4, kWideRoom, true, false};
  return {4, 4, 2, 4, form == WeightForm::kInt8 ? 64 : 32, 4, kWideRoom, true, true};
}

}  // namespace llmq::cuda
