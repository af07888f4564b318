// A quantized weight before packing: codes, scales, zeros and what the method says it lost.
//
// value(n, k) = (code - zero) * scale in FP32, with the scale exactly as stored: scales here are FP32 numbers
// that scheme.scale_dtype represents exactly (stored_scale() rounds), or for a scheme of another ScaleForm
// what its stored parts come to (tensor/block_scales.h), so dequantize() equals what any loader computes.
// Writers pack it, readers unpack into it. ggml's blocks with a minimum are code * scale - minimum, rounded
// twice in FP32: codes that were read from them have minima, and those of ZeroForm::kAddend, which are
// rounded to the type of their scales instead.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/half.h"
#include "base/threads.h"
#include "tensor/quant_scheme.h"

namespace llmq {

enum class ScaleType : unsigned char;  // kernels/common/scale_search.h

// What a method did to be able to round, beyond the codes.
struct RoundingNotes {
  double lambda = 0;                  // added to the Gram matrix's diagonal
  int lambda_raises = 0;              // steps beyond what was asked for
  std::int64_t dead_channels = 0;     // inputs that calibration never saw active
  std::vector<std::string> warnings;  // sentences
};

// Scales that are products, as ggml's blocks of 256 store them: scales[n, g] = d[n, g / together] * s[n, g],
// and minima alike with m and t. What has none keeps its scales as numbers.
struct ScaleFactors {
  std::int64_t together = 0;  // groups of one d; 0: there are none
  std::vector<Float16> d, m;  // [out, groups / together]
  std::vector<std::int8_t> s;
  std::vector<std::uint8_t> t;
};

// What each of 16 codes stands for, where no type of weight says it: value = values[code] * scale, rounded to
// `rounded_to`.
struct CodeValues {
  std::array<float, 16> values{};
  DType rounded_to = DType::kF32;  // kF32, kBF16 or kF16
};

struct QuantizedMatrix {
  QuantScheme scheme;
  std::int64_t out_features = 0, in_features = 0;
  std::vector<std::uint8_t> codes;  // [out, in], 0 .. 2^bits-1, or the bits of E4M3 or E2M1
  std::vector<float>
      scales;  // [out, groups]; kBlock: the scale of a block stands in each of its rows; may be negative
  std::vector<std::uint8_t> zeros;         // [out, groups]; symmetric: all scheme.middle()
  std::optional<CodeValues> code_values;   // of codes of 4 bits; none: as scheme.weight_type says
  std::vector<float> minima;               // [out, groups], with every zero 0; empty: none
  ScaleFactors factors;                    // of scales and minima, which stand there multiplied all the same
  std::vector<std::int32_t> column_group;  // [in] the group of each column; empty: k / group()
  // Columns that stay as they were, rising, and their weights [out, kept_columns]; packed formats have no
  // place for them.
  std::vector<std::int32_t> kept_columns;
  std::vector<float> kept_weights;
  float global_scale = 0;  // ScaleForm::kTwoLevel: what the E4M3 numbers are divided by, or multiplied by
  GlobalForm global_form = GlobalForm::kDivisor;
  // ActivationScale::kTensor: the calibrated scale of the linear's input, a stored_scale(). Inputs of two
  // levels: what their E4M3 scales are divided or multiplied by, in global_form.
  float input_scale = 0;
  RoundingNotes notes;
  double loss = 0;  // tr(dW G dW^T) as the method measured it, 0 without statistics

  std::int64_t group() const { return scheme.group_of(in_features); }
  std::int64_t groups() const { return scheme.groups_of(in_features); }
  std::int64_t group_of_column(std::int64_t k) const {
    return column_group.empty() ? k / group() : column_group[static_cast<std::size_t>(k)];
  }
};

// `scale` rounded to the stored type, as FP32; a zero or subnormal-to-zero result becomes the smallest normal
// of that type.
float stored_scale(float scale, DType scale_dtype);
ScaleType scale_type(DType scale_dtype);  // how kernels name it

// The code, before it is rounded and clamped, of the largest magnitude among values that are rounded to 8
// bits.
float input_top(WeightType type);
// The scale of such values with `largest` the largest magnitude: largest / input_top(type); 1 where all are
// 0, which any scale stores.
float input_scale(WeightType type, float largest);

// ZeroForm::kAddend, of codes with one scale: code * scale rounded to `dtype`, and + addend rounded to it.
void affine_values(std::span<const std::uint8_t> codes, float scale, float addend, DType dtype, float* into);
// Zeros become minima: the addend of a group is its zero times its scale, rounded to the type, with the other
// sign.
void store_addends(QuantizedMatrix& matrix);

// What one code of `scheme` stands for.
float weight_value(const QuantScheme& scheme, std::uint8_t code, std::uint8_t zero, float scale);

// Rows [first, first + count) as a matrix of its own: each has the values that it had. Without notes and
// loss, which are of the whole.
QuantizedMatrix row_slice(const QuantizedMatrix& matrix, std::int64_t first, std::int64_t count);

// FP32 through kernels/common/code_value.h: row n, in_features values; the whole matrix, [out, in].
void dequantize_row(const QuantizedMatrix& matrix, std::int64_t n, float* into);
void dequantize(const QuantizedMatrix& matrix, std::span<float> into);
void dequantize(const QuantizedMatrix& matrix, std::span<float> into, ThreadPool& pool);

}  // namespace llmq
