#include "device/reference/weight.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "device/reference/elements.h"

namespace llmq::reference {
namespace {

// One row of inputs rounded to 8 bits: codes as numbers, a scale for each group of columns.
struct RoundedRow {
  std::vector<double> codes, scales;
};

RoundedRow round_row(const TensorView& x, std::int64_t m, const QuantizedMatrix& weight) {
  const QuantScheme& scheme = weight.scheme;
  const bool float8 = scheme.weight_type == WeightType::kFloat8;
  const std::int64_t columns =
      scheme.activation_scale == ActivationScale::kTokenGroup ? weight.group() : weight.in_features;
  RoundedRow rounded;
  for (std::int64_t first = 0; first < weight.in_features; first += columns) {
    const std::int64_t end = std::min(weight.in_features, first + columns);
    float greatest = 0;
    bool finite = true;
    for (std::int64_t k = first; k < end; ++k) {
      const auto value = static_cast<float>(read(x, m, k));
      finite = finite && std::isfinite(value);
      greatest = std::max(greatest, std::fabs(value));
    }
    float scale = greatest / input_top(scheme.weight_type);
    if (scale == 0) scale = kLeastInputScale;
    if (scheme.activation_scale == ActivationScale::kTensor) scale = weight.input_scale;
    if (!finite) scale = std::numeric_limits<float>::quiet_NaN();
    for (std::int64_t k = first; k < end; ++k) {
      const float steps = static_cast<float>(read(x, m, k)) / scale;
      rounded.codes.push_back(static_cast<double>(
          float8 ? to_float(to_float8(steps)) : std::nearbyint(std::min(std::max(steps, -128.0f), 127.0f))));
    }
    rounded.scales.push_back(static_cast<double>(scale));
  }
  return rounded;
}

double multiply_codes(const RoundedRow& row, const QuantizedMatrix& weight, std::int64_t n) {
  const bool float8 = weight.scheme.weight_type == WeightType::kFloat8;
  double y = 0;
  for (std::int64_t g = 0; g < weight.groups(); ++g) {
    const auto group = static_cast<std::size_t>(n * weight.groups() + g);
    double sum = 0;  // of integers below 2^31, or of products of two E4M3: exact
    for (std::int64_t k = g * weight.group(); k < std::min(weight.in_features, (g + 1) * weight.group());
         ++k) {
      const std::uint8_t code = weight.codes[static_cast<std::size_t>(n * weight.in_features + k)];
      sum += row.codes[static_cast<std::size_t>(k)] *
             (float8 ? static_cast<double>(to_float(Float8{code}))
                     : static_cast<double>(code) - static_cast<double>(weight.zeros[group]));
    }
    y += sum * static_cast<double>(weight.scales[group]) *
         row.scales[row.scales.size() == 1 ? 0 : static_cast<std::size_t>(g)];
  }
  return y;
}

// Inputs as floats in groups: code * level.
void round_groups(const InputGroups& groups, std::vector<double>& row) {
  const auto size = static_cast<std::size_t>(groups.size);
  for (std::size_t first = 0; first < row.size(); first += size) {
    float values[InputGroups::kMostInGroup];
    const std::size_t count = std::min(size, row.size() - first);
    for (std::size_t k = 0; k < count; ++k) values[k] = static_cast<float>(row[first + k]);
    round_input_group(groups, values, static_cast<int>(count));
    for (std::size_t k = 0; k < count; ++k) row[first + k] = static_cast<double>(values[k]);
  }
}

std::vector<float> levels_of(const QuantizedMatrix& matrix) {
  std::vector<BFloat16> row(static_cast<std::size_t>(matrix.in_features));
  std::vector<float> values;
  for (std::int64_t n = 0; n < matrix.out_features; ++n) {
    weight_levels(matrix, n, row.data());
    for (const BFloat16 value : row) values.push_back(to_float(value));
  }
  return values;
}

double bias_of(const TensorView& bias, std::int64_t n) {
  return bias.pointer == nullptr ? 0.0 : static_cast<double>(bias.as<const float>()[n]);
}

std::unique_ptr<Weight> empty_weight(std::int64_t out_features, std::int64_t in_features, Compute compute) {
  auto prepared = std::make_unique<Weight>();
  prepared->out_features = out_features;
  prepared->in_features = in_features;
  prepared->compute = compute;
  prepared->kernel = "double";
  return prepared;
}

}  // namespace

std::unique_ptr<Weight> prepare(const TensorView& weight, Compute compute) {
  auto prepared = empty_weight(weight.rows(), weight.cols(), compute);
  prepared->values.reserve(static_cast<std::size_t>(weight.rows() * weight.cols()));
  for (std::int64_t n = 0; n < weight.rows(); ++n)
    for (std::int64_t k = 0; k < weight.cols(); ++k) {
      const float value = static_cast<float>(read(weight, n, k));
      prepared->values.push_back(compute == Compute::kBFloat16 ? to_float(to_bfloat16(value)) : value);
    }
  prepared->bytes = prepared->values.size() * sizeof(float);
  return prepared;
}

std::unique_ptr<Weight> prepare_quantized(const QuantizedMatrix& matrix, Compute compute) {
  auto prepared = empty_weight(matrix.out_features, matrix.in_features, compute);
  if (matrix.scheme.activation_scale == ActivationScale::kNone) {
    prepared->keeps_codes = true;
    prepared->values.resize(matrix.codes.size());
    dequantize(matrix, prepared->values);
    prepared->bytes = prepared->values.size() * sizeof(float);
    return prepared;
  }
  check_low_precision(matrix);
  prepared->float_inputs = float_inputs(matrix);
  if (prepared->float_inputs.groups.size != 0) {
    prepared->keeps_codes = true;
    prepared->values = levels_of(matrix);
    prepared->bytes = prepared->values.size() * sizeof(float);
    return prepared;
  }
  prepared->bytes = matrix.codes.size() + matrix.zeros.size() + matrix.scales.size() * sizeof(float);
  prepared->codes = matrix;
  return prepared;
}

void multiply(const TensorView& y, const TensorView& x, const Weight& w, const TensorView& bias) {
  std::vector<double> row(static_cast<std::size_t>(w.in_features));
  for (std::int64_t m = 0; m < x.rows(); ++m) {
    if (w.codes) {
      const RoundedRow rounded = round_row(x, m, *w.codes);
      for (std::int64_t n = 0; n < w.out_features; ++n)
        write(y, m, n, multiply_codes(rounded, *w.codes, n) + bias_of(bias, n));
      continue;
    }
    for (std::int64_t k = 0; k < w.in_features; ++k) row[static_cast<std::size_t>(k)] = read(x, m, k);
    if (w.float_inputs.groups.size != 0) round_groups(w.float_inputs.groups, row);
    for (std::int64_t n = 0; n < w.out_features; ++n) {
      double sum = 0;
      for (std::int64_t k = 0; k < w.in_features; ++k)
        sum += row[static_cast<std::size_t>(k)] * static_cast<double>(w.row(n)[k]);
      write(y, m, n, sum * static_cast<double>(w.float_inputs.factor) + bias_of(bias, n));
    }
  }
}

}  // namespace llmq::reference
