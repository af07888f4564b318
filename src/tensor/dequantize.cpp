// Stored elements to FP32, exactly where FP32 can hold them; block types by the arithmetic of
// tensor/ggml_blocks.h. Bytes come from mapped files and may lie at any address: every load is a memcpy.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/half.h"
#include "base/threads.h"
#include "tensor/ggml_blocks.h"
#include "tensor/ggml_grids.h"
#include "tensor/mxfp4.h"
#include "tensor/tensor_view.h"

namespace llmq {
namespace {

using Bytes = const std::uint8_t*;

template <typename T>
T load(Bytes from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename T, typename Convert>
void plain_row(Bytes from, std::span<float> into, const Convert& convert) {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = convert(load<T>(from + i * sizeof(T)));
}

template <typename T>
void number_row(Bytes from, std::span<float> into) {
  plain_row<T>(from, into, [](T value) { return static_cast<float>(value); });
}

void row_to_float32(DType dtype, Bytes from, std::span<float> into) {
  switch (dtype) {
    case DType::kF64:
      return number_row<double>(from, into);
    case DType::kF32:
      std::memcpy(into.data(), from, into.size_bytes());
      return;
    case DType::kF16:
      return plain_row<std::uint16_t>(from, into, [](std::uint16_t bits) { return to_float(Float16{bits}); });
    case DType::kBF16:
      return plain_row<std::uint16_t>(from, into,
                                      [](std::uint16_t bits) { return to_float(BFloat16{bits}); });
    case DType::kF8E4M3:
      return plain_row<std::uint8_t>(from, into, [](std::uint8_t bits) { return to_float(Float8{bits}); });
    case DType::kF8E5M2:
      return plain_row<std::uint8_t>(from, into,
                                     [](std::uint8_t bits) { return to_float(Float8E5M2{bits}); });
    case DType::kI64:
      return number_row<std::int64_t>(from, into);
    case DType::kU64:
      return number_row<std::uint64_t>(from, into);
    case DType::kI32:
      return number_row<std::int32_t>(from, into);
    case DType::kU32:
      return number_row<std::uint32_t>(from, into);
    case DType::kI16:
      return number_row<std::int16_t>(from, into);
    case DType::kU16:
      return number_row<std::uint16_t>(from, into);
    case DType::kI8:
      return number_row<std::int8_t>(from, into);
    case DType::kU8:
      return number_row<std::uint8_t>(from, into);
    case DType::kBool:
      return plain_row<std::uint8_t>(from, into, [](std::uint8_t b) { return b != 0 ? 1.f : 0.f; });
    case DType::kMXFP4:
      for (std::size_t i = 0; i < into.size(); i += 32, from += dtype_row(dtype).block_bytes)
        ggml_mxfp4_values(from, into.data() + i);
      return;
    default:
      break;
  }
  const DTypeRow& block = dtype_row(dtype);
  const BlockLayout* const layout = block_layout(dtype);
  for (std::size_t i = 0; i < into.size();
       i += static_cast<std::size_t>(block.block_elements), from += block.block_bytes) {
    if (layout != nullptr)
      block_values(*layout, read_block(*layout, from), into.data() + i);
    else if (!grid_block_values(dtype, from, into.data() + i))
      fail(ErrorKind::kInternal, "values stored as {} are not read", block.name);
  }
}

}  // namespace

namespace {

// Calls each(rows, columns, what converts row r).
template <typename Each>
void rows_to_float32(const TensorView& from, std::span<float> into, const Each& each) {
  const DTypeRow& row = dtype_row(from.dtype);
  const std::int64_t rows = from.rows(), cols = from.cols();
  if (!has_values(from.dtype))
    fail(ErrorKind::kUnsupported, "values stored as {} are not read here", row.name);
  if (from.device != Device{} || into.size() != static_cast<std::size_t>(rows * cols) ||
      cols % row.block_elements != 0)
    fail(ErrorKind::kInternal, "to_float32: {} tensor {} into {} values", row.name, from.shape.text(),
         into.size());
  if (into.empty()) return;
  const auto width = static_cast<std::size_t>(cols);
  const std::int64_t stride_bytes = row.block_elements == 1 ? from.row_stride * row.block_bytes
                                                            : cols / row.block_elements * row.block_bytes;
  each(rows, cols, [&](std::int64_t r) {
    row_to_float32(from.dtype, static_cast<Bytes>(from.pointer) + r * stride_bytes,
                   into.subspan(static_cast<std::size_t>(r) * width, width));
  });
}

}  // namespace

void to_float32(const TensorView& from, std::span<float> into) {
  rows_to_float32(from, into, [](std::int64_t rows, std::int64_t, const auto& convert) {
    for (std::int64_t r = 0; r < rows; ++r) convert(r);
  });
}

void to_float32(const TensorView& from, std::span<float> into, ThreadPool& pool) {
  // values: a quarter of a MiB, and of a millisecond where pages are new
  constexpr std::int64_t kItem = 1 << 16;
  rows_to_float32(from, into, [&](std::int64_t rows, std::int64_t cols, const auto& convert) {
    const std::int64_t each = std::max<std::int64_t>(1, kItem / cols);
    pool.parallel_for(static_cast<std::size_t>((rows + each - 1) / each), [&](std::size_t item, int) {
      const std::int64_t first = static_cast<std::int64_t>(item) * each;
      for (std::int64_t r = first; r < std::min(first + each, rows); ++r) convert(r);
    });
  });
}

}  // namespace llmq
