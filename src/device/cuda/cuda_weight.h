// Weights in a device's memory: numbers as they are stored (bfloat16 compute: BF16), or codes of one byte with scales, zeros and minima.
#pragma once
#include <memory>

#include "device/backend.h"
#include "device/cuda/cuda_device.h"

namespace llmq {

class CudaWeight final : public PreparedWeight {
 public:
  const CudaDevice* owner = nullptr;
  Buffer values;  // dense: [out, in] of `element`
  cuda::Element element = cuda::Element::kF32;

  Buffer codes, scales, zeros, minima, column_group;  // keeps_codes
  std::int64_t group = 1, groups = 1;
  WeightType type = WeightType::kInteger;
  ActivationScale activation = ActivationScale::kNone;
  float input_scale = 0;

  cuda::DenseOperand dense() const { return {values.get(), in_features, 1, element}; }
  cuda::CodeOperand coded() const;
};

cuda::Element element_of(DType dtype);  // F32, BF16, F16; Error(kInternal) for others

std::unique_ptr<CudaWeight> dense_weight(CudaDevice& device, const TensorView& weight, Compute compute);
// Error(kUnsupported) where columns were kept as they are, or check_low_precision() refuses.
std::unique_ptr<CudaWeight> code_weight(CudaDevice& device, const QuantizedMatrix& matrix, Compute compute);

}  // namespace llmq
