#include "tensor/ggml_quantize.h"

#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "base/half.h"

namespace llmq {
namespace {

// A run of FP32 numbers to `bytes`; `row` and `first` say where it lies, for errors.
void plain_row(DType type, std::span<const float> row, std::int64_t number, std::byte* bytes) {
  for (std::size_t j = 0; j < row.size(); ++j, bytes += 2) {
    const std::uint16_t bits = type == DType::kF16 ? to_float16(row[j]).bits : to_bfloat16(row[j]).bits;
    const float stored = type == DType::kF16 ? to_float(Float16{bits}) : to_float(BFloat16{bits});
    if (!std::isfinite(stored))
      fail(ErrorKind::kBadInput, "row {}, column {} is {}, which {} cannot hold", number, j, row[j],
           dtype_row(type).name);
    std::memcpy(bytes, &bits, sizeof bits);
  }
}

void check_finite(std::span<const float> values, std::int64_t row) {
  for (std::size_t j = 0; j < values.size(); ++j)
    if (!std::isfinite(values[j])) fail(ErrorKind::kBadInput, "row {}, column {} is {}", row, j, values[j]);
}

void check_importance(std::span<const float> importance) {
  for (std::size_t j = 0; j < importance.size(); ++j)
    if (!std::isfinite(importance[j]) || importance[j] < 0)
      fail(ErrorKind::kBadInput, "the importance of column {} is {}: it must be finite and not negative", j,
           importance[j]);
}

}  // namespace

std::uint64_t ggml_row_bytes(DType type, std::int64_t columns) {
  const DTypeRow& row = dtype_row(type);
  if (columns < 0 || columns % row.block_elements != 0)
    fail(ErrorKind::kBadInput, "{} stores blocks of {} values, which rows of {} are no multiple of", row.name,
         row.block_elements, columns);
  return static_cast<std::uint64_t>(columns / row.block_elements) *
         static_cast<std::uint64_t>(row.block_bytes);
}

void quantize_ggml_rows(DType type, std::span<const float> rows, std::int64_t columns,
                        std::span<const float> importance, BlockSearch, std::span<std::byte> out,
                        ThreadPool& pool) {
  const std::uint64_t row_bytes = ggml_row_bytes(type, columns);
  const auto width = static_cast<std::size_t>(columns);
  if (type != DType::kF16 && type != DType::kBF16)
    fail(ErrorKind::kUnsupported, "{} is not written", dtype_row(type).name);
  if (rows.empty()) return;
  if (width == 0 || rows.size() % width != 0 || (!importance.empty() && importance.size() != width) ||
      out.size() != rows.size() / width * row_bytes)
    fail(ErrorKind::kInternal, "quantize_ggml_rows: {} values, {} columns, {} importances, {} bytes",
         rows.size(), columns, importance.size(), out.size());
  check_importance(importance);
  pool.parallel_for(rows.size() / width, [&](std::size_t r, int) {
    const std::span<const float> row = rows.subspan(r * width, width);
    check_finite(row, static_cast<std::int64_t>(r));
    plain_row(type, row, static_cast<std::int64_t>(r), out.data() + r * row_bytes);
  });
}

}  // namespace llmq
