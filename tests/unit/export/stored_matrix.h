// Codes and scales of each form that a matrix may be stored in.
#pragma once
#include "tensor/block_scales.h"
#include "tests/unit/export/tiny_checkpoint.h"

namespace llmq::testing {

// Codes and scales that the scheme can have; those of two levels over a global scale.
inline QuantizedMatrix stored_matrix(const PlannedModule& module, std::uint64_t seed, float global) {
  QuantizedMatrix matrix = tiny_matrix(module, seed);
  if (module.scheme.scale_form() == ScaleForm::kTwoLevel) {
    matrix.global_scale = global;
    if (module.scheme.calibrates_inputs()) matrix.input_scale = 4 * global;
    for (std::size_t i = 0; i < matrix.scales.size(); ++i)
      matrix.scales[i] = nvfp4_scale(static_cast<std::uint8_t>(1 + i % 126), global);
    return matrix;
  }
  for (std::uint8_t& code : matrix.codes)
    if ((code & 0x7f) == 0x7f) code = 0x38;  // NaN
  if (module.scheme.granularity == Granularity::kTensor)
    matrix.scales.assign(matrix.scales.size(), matrix.scales[0]);
  if (module.scheme.activation_scale == ActivationScale::kTensor) matrix.input_scale = 0.0625f;
  return matrix;
}

}  // namespace llmq::testing
