#include "quant/pipeline/weight_checks.h"

#include <cmath>

#include "base/error.h"
#include "quant/methods/gram_loss.h"

namespace llmq {

double weight_error(const LinearWork& work, const QuantizedMatrix& matrix, ThreadPool& pool) {
  const auto columns = static_cast<std::size_t>(matrix.in_features);
  const std::span<const float> original = work.original();
  std::vector<double> difference(static_cast<std::size_t>(matrix.out_features)), norm(difference.size());
  pool.parallel_for(difference.size(), [&](std::size_t row, int) {
    thread_local std::vector<float> value;
    value.resize(columns);
    dequantize_row(matrix, static_cast<std::int64_t>(row), value.data());
    const float out = work.out_scale.empty() ? 1.0f : work.out_scale[row];
    double lost = 0, whole = 0;  // not in the vectors: neighbouring rows of two threads share cache lines
    for (std::size_t k = 0; k < columns; ++k) {
      const float w = original[row * columns + k];
      const float in = work.in_scale.empty() ? 1.0f : work.in_scale[k];
      const double d = static_cast<double>(value[k] * out / in - w);
      lost += d * d;
      whole += static_cast<double>(w) * w;
    }
    difference[row] = lost;
    norm[row] = whole;
  });
  const double whole = sum_in_order(norm);
  return whole == 0 ? 0 : std::sqrt(sum_in_order(difference) / whole);
}

namespace {

bool may_be_written(float scale) { return std::isfinite(scale) && scale != 0; }

}  // namespace

void check_scale(float scale, const std::string& place, const std::string& tensor, const std::string& file) {
  if (may_be_written(scale)) return;
  fail(ErrorKind::kInternal,
       {fmt::format("{} is {}, and would be written", place, scale), file, tensor, "nothing was published"});
}

void check_scales(const QuantizedMatrix& matrix, const std::string& module, const std::string& file) {
  const auto groups = static_cast<std::size_t>(matrix.groups());
  for (std::size_t i = 0; i < matrix.scales.size(); ++i) {
    if (may_be_written(matrix.scales[i])) continue;  // millions of them: no words are made for those
    if (std::isinf(matrix.scales[i]))
      fail(ErrorKind::kUnsupported, {fmt::format("its weights need a scale beyond {}'s range",
                                                 dtype_row(matrix.scheme.scale_dtype).name),
                                     file, module, "write format: compressed-tensors, or a BF16 checkpoint"});
    check_scale(matrix.scales[i], fmt::format("the scale of row {}, group {}", i / groups, i % groups),
                module, file);
  }
  if (matrix.scheme.calibrates_inputs())
    check_scale(matrix.input_scale, "the scale of its inputs", module, file);
}

}  // namespace llmq
