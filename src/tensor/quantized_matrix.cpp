#include "tensor/quantized_matrix.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/half.h"
#include "kernels/common/code_value.h"
#include "kernels/common/scale_search.h"
#include "tensor/mxfp4.h"
#include "tensor/stored_float.h"

namespace llmq {

ScaleType scale_type(DType scale_dtype) {
  switch (scale_dtype) {
    case DType::kF32:
      return ScaleType::kF32;
    case DType::kBF16:
      return ScaleType::kBF16;
    case DType::kF16:
      return ScaleType::kF16;
    default:
      fail(ErrorKind::kInternal, "scales are not stored as {}", dtype_row(scale_dtype).name);
  }
}

float stored_scale(float scale, DType scale_dtype) { return stored_as(scale, scale_type(scale_dtype)); }

float input_top(WeightType type) { return type == WeightType::kFloat8 ? kFloat8Top : kInt8Top; }

float input_scale(WeightType type, float largest) { return largest == 0 ? 1.0f : largest / input_top(type); }

namespace {

template <class Round>
void round_affine(std::span<const std::uint8_t> codes, float scale, float addend, float* into,
                  const Round& round) {
  for (std::size_t k = 0; k < codes.size(); ++k)
    into[k] = round(round(static_cast<float>(codes[k]) * scale) + addend);
}

}  // namespace

void affine_values(std::span<const std::uint8_t> codes, float scale, float addend, DType dtype, float* into) {
  if (dtype == DType::kBF16)
    return round_affine(codes, scale, addend, into, [](float v) { return to_float(to_bfloat16(v)); });
  round_affine(codes, scale, addend, into, [dtype](float v) { return stored_float(v, dtype); });
}

void store_addends(QuantizedMatrix& matrix) {
  matrix.minima.resize(matrix.scales.size());
  for (std::size_t i = 0; i < matrix.scales.size(); ++i) {
    const std::uint8_t zero = std::exchange(matrix.zeros[i], std::uint8_t{0});
    matrix.minima[i] =
        zero == 0 ? 0.0f
                  : stored_float(static_cast<float>(zero) * matrix.scales[i], matrix.scheme.scale_dtype);
  }
}

float weight_value(const QuantScheme& scheme, std::uint8_t code, std::uint8_t zero, float scale) {
  if (scheme.weight_type == WeightType::kFloat4) return kE2M1[code & 15] * scale;
  return scheme.weight_type == WeightType::kFloat8 ? to_float(Float8{code}) * scale
                                                   : code_value(code, zero, scale);
}

namespace {

// weight_value() for neighbours with one scale: the same product, with nothing to look up for each.
void dequantize_group(const QuantScheme& scheme, const std::uint8_t* code, std::int64_t count,
                      std::uint8_t zero, float scale, float* into) {
  if (scheme.weight_type != WeightType::kInteger) {
    for (std::int64_t k = 0; k < count; ++k) into[k] = weight_value(scheme, code[k], zero, scale);
    return;
  }
  constexpr std::int64_t kTogether = 16;  // a count the compiler knows makes vectors of them
  for (; count >= kTogether; count -= kTogether, code += kTogether, into += kTogether)
    for (std::int64_t k = 0; k < kTogether; ++k) into[k] = code_value(code[k], zero, scale);
  for (std::int64_t k = 0; k < count; ++k) into[k] = code_value(code[k], zero, scale);
}

void dequantize_by_table(const CodeValues& table, const std::uint8_t* code, std::int64_t count, float scale,
                         float* into) {
  for (std::int64_t k = 0; k < count; ++k)
    into[k] = stored_float(table.values[code[k] & 15u] * scale, table.rounded_to);
}

void dequantize_affine_row(const QuantizedMatrix& matrix, std::int64_t n, float* into) {
  const std::int64_t group = matrix.group(), groups = matrix.groups();
  const std::span<const std::uint8_t> codes = std::span(matrix.codes)
                                                  .subspan(static_cast<std::size_t>(n * matrix.in_features),
                                                           static_cast<std::size_t>(matrix.in_features));
  for (std::int64_t g = 0; g < groups; ++g) {
    const auto at = static_cast<std::size_t>(n * groups + g);
    const auto own = codes.subspan(static_cast<std::size_t>(g * group), static_cast<std::size_t>(group));
    affine_values(own, matrix.scales[at], -matrix.minima[at], matrix.scheme.scale_dtype, into + g * group);
  }
}

}  // namespace

void dequantize_row(const QuantizedMatrix& matrix, std::int64_t n, float* into) {
  if (matrix.scheme.zero_form == ZeroForm::kAddend) return dequantize_affine_row(matrix, n, into);
  const std::int64_t group = matrix.group(), groups = matrix.groups();
  const std::uint8_t* const code = matrix.codes.data() + n * matrix.in_features;
  if (matrix.column_group.empty()) {
    for (std::int64_t g = 0; g < groups; ++g) {
      const auto at = static_cast<std::size_t>(n * groups + g);
      const std::int64_t end = std::min(matrix.in_features, (g + 1) * group);
      if (matrix.code_values)
        dequantize_by_table(*matrix.code_values, code + g * group, end - g * group, matrix.scales[at],
                            into + g * group);
      else
        dequantize_group(matrix.scheme, code + g * group, end - g * group, matrix.zeros[at],
                         matrix.scales[at], into + g * group);
      if (matrix.minima.empty()) continue;
      for (std::int64_t k = g * group; k < end; ++k) into[k] -= matrix.minima[at];
    }
  } else {
    for (std::int64_t k = 0; k < matrix.in_features; ++k) {
      const auto at = static_cast<std::size_t>(n * groups + matrix.group_of_column(k));
      into[k] = weight_value(matrix.scheme, code[k], matrix.zeros[at], matrix.scales[at]);
      if (!matrix.minima.empty()) into[k] -= matrix.minima[at];
    }
  }
  const std::size_t kept = matrix.kept_columns.size();
  for (std::size_t i = 0; i < kept; ++i)
    into[matrix.kept_columns[i]] = matrix.kept_weights[static_cast<std::size_t>(n) * kept + i];
}

namespace {

void check_sizes(const QuantizedMatrix& matrix, std::span<const float> into) {
  const auto values = static_cast<std::size_t>(matrix.out_features * matrix.in_features);
  const auto parameters = static_cast<std::size_t>(matrix.out_features * matrix.groups());
  if (matrix.codes.size() != values || into.size() != values || matrix.scales.size() != parameters ||
      matrix.zeros.size() != parameters || (!matrix.minima.empty() && matrix.minima.size() != parameters) ||
      matrix.kept_weights.size() !=
          matrix.kept_columns.size() * static_cast<std::size_t>(matrix.out_features) ||
      (!matrix.column_group.empty() &&
       matrix.column_group.size() != static_cast<std::size_t>(matrix.in_features)))
    fail(ErrorKind::kInternal,
         "dequantize: {} codes, {} scales, {} zeros and room for {} values for {} x {} in groups of {}",
         matrix.codes.size(), matrix.scales.size(), matrix.zeros.size(), into.size(), matrix.out_features,
         matrix.in_features, matrix.group());
}

}  // namespace

QuantizedMatrix row_slice(const QuantizedMatrix& matrix, std::int64_t first, std::int64_t count) {
  if (first < 0 || count < 0 || first > matrix.out_features - count)
    fail(ErrorKind::kInternal, "rows {} to {} of a weight of {}", first, first + count, matrix.out_features);
  // Of a list with so many entries for each row; an empty one stays so.
  const auto rows_of = [&](const auto& whole, std::int64_t per_row) {
    const auto begin = whole.begin() + (whole.empty() ? 0 : first * per_row);
    return std::remove_cvref_t<decltype(whole)>(begin, begin + (whole.empty() ? 0 : count * per_row));
  };
  QuantizedMatrix part;
  part.scheme = matrix.scheme;
  part.out_features = count;
  part.in_features = matrix.in_features;
  part.codes = rows_of(matrix.codes, matrix.in_features);
  part.scales = rows_of(matrix.scales, matrix.groups());
  part.zeros = rows_of(matrix.zeros, matrix.groups());
  part.code_values = matrix.code_values;
  part.minima = rows_of(matrix.minima, matrix.groups());
  if (const ScaleFactors& factors = matrix.factors; factors.together > 0) {
    const std::int64_t blocks = matrix.groups() / factors.together;
    part.factors = {factors.together, rows_of(factors.d, blocks), rows_of(factors.m, blocks),
                    rows_of(factors.s, matrix.groups()), rows_of(factors.t, matrix.groups())};
  }
  part.column_group = matrix.column_group;
  part.kept_columns = matrix.kept_columns;
  part.kept_weights = rows_of(matrix.kept_weights, static_cast<std::int64_t>(matrix.kept_columns.size()));
  part.global_scale = matrix.global_scale;
  part.global_form = matrix.global_form;
  part.input_scale = matrix.input_scale;
  return part;
}

void dequantize(const QuantizedMatrix& matrix, std::span<float> into, ThreadPool& pool) {
  check_sizes(matrix, into);
  pool.parallel_for(static_cast<std::size_t>(matrix.out_features), [&](std::size_t row, int) {
    const auto n = static_cast<std::int64_t>(row);
    dequantize_row(matrix, n, into.data() + n * matrix.in_features);
  });
}

void dequantize(const QuantizedMatrix& matrix, std::span<float> into) {
  check_sizes(matrix, into);
  for (std::int64_t n = 0; n < matrix.out_features; ++n)
    dequantize_row(matrix, n, into.data() + n * matrix.in_features);
}

}  // namespace llmq
