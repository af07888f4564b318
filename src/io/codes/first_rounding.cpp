#include "io/codes/first_rounding.h"

#include <fmt/format.h>

namespace llmq {

std::string first_rounding(const StoredTensor& tensor) {
  if (tensor.block_scales)
    return fmt::format("FP8 in blocks of {} x {}", tensor.block_scales->block_rows,
                       tensor.block_scales->block_columns);
  if (tensor.bits_and_bytes && tensor.view.dtype == DType::kI8) return "LLM.int8";
  if (tensor.bits_and_bytes)  // NF4's table of values begins with -1, FP4's with 0
    return tensor.bits_and_bytes->map.front() < 0 ? "NF4" : "FP4";
  if (tensor.exponents) return "MXFP4";
  if (tensor.made_of) return fmt::format("MLX codes of {} bits", tensor.made_of->bits);
  const DType stored = tensor.pieces ? tensor.pieces->front().view.dtype : tensor.view.dtype;
  return is_block_type(stored) ? std::string(dtype_row(stored).name) : std::string();
}

std::string told_of_second_rounding(std::string_view name, std::string_view form) {
  return fmt::format(
      "{} is stored as {} and is rounded a second time, and those like it: what the first rounding lost "
      "stays "
      "lost",
      name, form);
}

}  // namespace llmq
