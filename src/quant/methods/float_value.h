// The magnitude of the code nearest to one that is divided by its scale, without branches: loops over
// neighbours become vectors.
#pragma once
#include "base/half.h"
#include "kernels/common/float_groups.h"
#include "tensor/quant_scheme.h"

namespace llmq {

template <WeightType kType>
inline float rounded_magnitude(float size) {
  if constexpr (kType == WeightType::kFloat4)
    return e2m1_magnitude(size);
  else
    return to_float(to_float8(size));
}

}  // namespace llmq
