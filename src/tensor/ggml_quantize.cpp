#include "tensor/ggml_quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/checked.h"
#include "base/error.h"
#include "base/half.h"
#include "tensor/ggml_choice.h"
#include "tensor/mxfp4.h"
#include "tensor/stored_float.h"

namespace llmq {
namespace {

// A run of FP32 numbers to `bytes`; `row` and `first` say where it lies, for errors.
void plain_row(DType type, std::span<const float> row, std::int64_t number, std::byte* bytes) {
  for (std::size_t j = 0; j < row.size(); ++j)
    if (!std::isfinite(row[j]) || storing_overflows(row[j], type))
      fail(ErrorKind::kBadInput, "row {}, column {} is {}, which {} cannot hold", number, j, row[j],
           dtype_row(type).name);
  store_floats(row, type, bytes);
}

void mxfp4_row(std::span<const float> row, std::int64_t number, std::byte* bytes) {
  for (std::size_t j = 0; j < row.size(); ++j)
    if (!std::isfinite(row[j]))
      fail(ErrorKind::kBadInput, "row {}, column {} is {}, which MXFP4 cannot hold", number, j, row[j]);
  constexpr std::size_t kBytes = 17;
  for (std::size_t block = 0; block < row.size() / 32; ++block)
    ggml_mxfp4_block(row.subspan(block * 32, 32), reinterpret_cast<std::uint8_t*>(bytes) + block * kBytes);
}

// The largest magnitude that any scales can give. Below, no sum of the searches overflows.
float largest_value(const BlockLayout& layout) {
  return 65504.f * static_cast<float>(std::max(-layout.scale_low, layout.scale_high)) *
         static_cast<float>(layout.values != nullptr ? -layout.values->front()
                                                     : std::max(layout.zero, layout.top() - layout.zero));
}

void check_importance(std::span<const float> importance) {
  for (std::size_t j = 0; j < importance.size(); ++j)
    if (!(importance[j] >= 0 && importance[j] <= kLargestImportance))
      fail(ErrorKind::kBadInput, "the importance of column {} is {}: it must be in [0, {}]", j, importance[j],
           kLargestImportance);
}

// Importance with a floor of 2^-20 of its mean, so that columns that calibration never saw are still rounded
// well; equal weights without.
std::vector<float> wide_search_weights(std::span<const float> importance, std::size_t width) {
  double sum = 0;
  for (const float value : importance) sum += static_cast<double>(value);
  if (sum == 0) return std::vector<float>(width, 1.f);
  std::vector<float> weights(importance.begin(), importance.end());
  const auto floor = static_cast<float>(sum / static_cast<double>(width) * 0x1p-20);
  for (float& weight : weights) weight += floor;
  return weights;
}

// `weights`: what the wider search minimizes; empty without it.
void block_row(const BlockLayout& layout, std::span<const float> row, std::span<const float> importance,
               std::span<const float> weights, std::int64_t number, std::byte* bytes) {
  const float limit = largest_value(layout);
  for (std::size_t j = 0; j < row.size(); ++j)
    if (!(std::fabs(row[j]) <= limit))
      fail(ErrorKind::kBadInput, "row {}, column {} is {}, which {} cannot hold", number, j, row[j],
           dtype_row(layout.dtype).name);
  float squares = 0;
  for (const float x : row) squares += x * x;
  const float mean_square = squares / static_cast<float>(row.size());
  const int elements = layout.elements, blocks = static_cast<int>(row.size()) / elements;
  for (int block = 0; block < blocks; block += kBlocksAtOnce) {
    const int first = block * elements, count = std::min(kBlocksAtOnce, blocks - block);
    std::array<BlockFields, kBlocksAtOnce> fields;
    choose_as_ggml(
        layout, {row.data() + first, importance.empty() ? nullptr : importance.data() + first, mean_square},
        count, fields.data());
    if (!weights.empty())
      improve_blocks(layout, {row.data() + first, weights.data() + first, mean_square}, count, fields.data());
    for (int k = 0; k < count; ++k, bytes += dtype_row(layout.dtype).block_bytes) {
      const BlockFields& chosen = fields[static_cast<std::size_t>(k)];
      if (!std::isfinite(to_float(chosen.d)) || !std::isfinite(to_float(chosen.m)))
        fail(ErrorKind::kBadInput, "row {}, columns {} to {}: {} would need a scale beyond F16's range",
             number, first + k * elements, first + (k + 1) * elements - 1, dtype_row(layout.dtype).name);
      write_block(layout, chosen, reinterpret_cast<std::uint8_t*>(bytes));
    }
  }
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
                        std::span<const float> importance, BlockSearch search, std::span<std::byte> out,
                        ThreadPool& pool) {
  const std::uint64_t row_bytes = ggml_row_bytes(type, columns);
  const auto width = static_cast<std::size_t>(columns);
  const BlockLayout* const layout = block_layout(type);
  if (layout == nullptr && type != DType::kF16 && type != DType::kBF16 && type != DType::kMXFP4)
    fail(ErrorKind::kUnsupported, "{} is not written", dtype_row(type).name);
  if (rows.empty()) return;
  if (width == 0 || rows.size() % width != 0 || (!importance.empty() && importance.size() != width) ||
      out.size() != rows.size() / width * row_bytes)
    fail(ErrorKind::kInternal, "quantize_ggml_rows: {} values, {} columns, {} importances, {} bytes",
         rows.size(), columns, importance.size(), out.size());
  check_importance(importance);
  const std::vector<float> weights =
      search == BlockSearch::kBest ? wide_search_weights(importance, width) : std::vector<float>{};
  pool.parallel_for(rows.size() / width, [&](std::size_t r, int) {
    const std::span<const float> row = rows.subspan(r * width, width);
    std::byte* const bytes = out.data() + r * row_bytes;
    if (type == DType::kMXFP4) {
      mxfp4_row(row, static_cast<std::int64_t>(r), bytes);
    } else if (layout == nullptr) {
      plain_row(type, row, static_cast<std::int64_t>(r), bytes);
    } else {
      block_row(*layout, row, importance, weights, static_cast<std::int64_t>(r), bytes);
    }
  });
}

}  // namespace llmq
