// Weights in a device's memory, as what multiplies them takes them:
//   fragments  BF16 numbers and codes for the matrix units (kernels/cuda/linear.h): bfloat16 compute, and all
//              with 8-bit inputs
//   fixed      BF16 numbers, for a library's products (dense_products.h): calibration
//   dense      numbers as they are stored, for FP32 products
//   coded      codes of one byte, each dequantized in FP32: float32 compute, minima, columns in another order
#pragma once
#include <memory>
#include <optional>

#include "base/threads.h"
#include "device/backend.h"
#include "device/cuda/cuda_device.h"
#include "device/low_precision.h"

namespace llmq {

class DenseProducts;
class FixedProduct;

class CudaWeight final : public PreparedWeight {
 public:
  explicit CudaWeight(const CudaDevice& device) : owner(&device), owner_name(device.name()) {}
  std::string prepared_by() const override { return owner_name; }

  const CudaDevice* owner;
  std::string owner_name;

  std::optional<cuda::WeightForm> form;  // fragments, or:
  // FP32 [groups][padded features]; scales of E2M1: a byte each
  Buffer fragments, group_scales, group_zeros;
  // kFloat4 beside inputs of 4 bits that stay codes, too (kernels/cuda/float4_arguments.h): fragments and
  // scales are laid out for that
  bool by_codes = false;
  ScaleOfByte scale_of_byte;
  Buffer values;  // dense or fixed: [out, in] of `element`
  const FixedProduct* fixed = nullptr;
  cuda::Element element = cuda::Element::kF32;

  Buffer codes, scales, zeros, minima, column_group;  // coded
  std::int64_t group = 1, groups = 1;
  WeightType type = WeightType::kInteger;
  ActivationScale activation = ActivationScale::kNone;
  float input_scale = 0;
  // floats in groups: beside E2M1 whose scales are levels, else beside fragments of BF16, code * level
  FloatInputs inputs;

  FragmentLayout layout() const {
    return by_codes ? cuda::float4_layout(out_features, in_features)
                    : cuda::fragment_layout(*form, out_features, in_features, group);
  }
  bool has_exponents() const { return !inputs.groups.two_levels; }  // of floats in groups
  cuda::DenseOperand dense() const { return {values.get(), in_features, 1, element}; }
  cuda::CodeOperand coded() const;
};

cuda::Element element_of(DType dtype);  // F32, BF16, F16; Error(kInternal) for others

// `pool` rounds what is not BF16 yet.
std::unique_ptr<CudaWeight> dense_weight(CudaDevice& device, DenseProducts& products,
                                         const TensorView& weight, Compute compute, ThreadPool& pool);
// `numbers`, BF16 [out, in] in the device's memory, to the fragments of a weight of these sides.
void pack_numbers(CudaDevice& device, CudaWeight& weight, const Buffer& numbers);
// Error(kUnsupported) where columns were kept as they are, or check_low_precision() refuses. by_codes: FP4 by
// FP4, where both are E2M1.
std::unique_ptr<CudaWeight> code_weight(CudaDevice& device, const QuantizedMatrix& matrix, Compute compute,
                                        bool by_codes);

}  // namespace llmq
