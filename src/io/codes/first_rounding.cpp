#include "io/codes/first_rounding.h"

#include <fmt/format.h>

namespace llmq {
namespace {

std::string float8_form(const StoredTensor& tensor) {
  const StoredTensor::BlockScales& scales = *tensor.block_scales;
  const bool whole_rows = scales.block_columns >= tensor.view.cols();
  if (whole_rows && scales.block_rows >= tensor.view.rows()) return "FP8 with one scale";
  if (whole_rows && scales.block_rows == 1) return "FP8 with a scale for each row";
  return fmt::format("FP8 in blocks of {} x {}", scales.block_rows, scales.block_columns);
}

}  // namespace

std::string first_rounding(const StoredTensor& tensor) {
  const DType stored = tensor.pieces ? tensor.pieces->front().view.dtype : tensor.view.dtype;
  if (is_block_type(stored)) return std::string(dtype_row(stored).name);
  if (tensor.block_scales && stored == DType::kF8E4M3) return float8_form(tensor);
  if (tensor.bits_and_bytes && tensor.view.dtype == DType::kI8) return "LLM.int8";
  if (tensor.bits_and_bytes)  // NF4's table of values begins with -1, FP4's with 0
    return tensor.bits_and_bytes->map.front() < 0 ? "NF4" : "FP4";
  if (tensor.exponents) return "MXFP4";
  if (tensor.made_of) return fmt::format("MLX codes of {} bits", tensor.made_of->bits);
  return {};
}

std::string told_of_second_rounding(std::string_view name, std::string_view form) {
  return fmt::format(
      "{} is stored as {} and is rounded a second time, and those like it: what the first rounding "
      "lost stays lost",
      name, form);
}

}  // namespace llmq
