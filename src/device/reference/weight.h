// A weight of the reference and what products with it mean.
#pragma once
#include <optional>
#include <vector>

#include "device/backend.h"
#include "device/low_precision.h"

namespace llmq::reference {

class Weight final : public PreparedWeight {
 public:
  std::string prepared_by() const override { return "reference"; }

  std::vector<float> values;             // [out, in]; bfloat16 compute: already rounded
  std::optional<QuantizedMatrix> codes;  // in place of values where inputs are rounded to 8 bits
  FloatInputs float_inputs;              // where they become floats in groups: values are code * level
  const float* row(std::int64_t n) const { return values.data() + n * in_features; }
};

std::unique_ptr<Weight> prepare(const TensorView& weight, Compute compute);
std::unique_ptr<Weight> prepare_quantized(const QuantizedMatrix& matrix, Compute compute);
// Backend::linear.
void multiply(const TensorView& y, const TensorView& x, const Weight& w, const TensorView& bias);

}  // namespace llmq::reference
