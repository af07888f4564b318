#include "export/gguf/rounded_slabs.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace llmq {
namespace {

// Where a stack of matrices is weighted, each has importance of its own.
std::span<const float> importance_of_matrix(std::span<const float> importance, std::int64_t columns,
                                            std::int64_t matrix) {
  const auto width = static_cast<std::size_t>(columns);
  return importance.size() <= width ? importance
                                    : importance.subspan(static_cast<std::size_t>(matrix) * width, width);
}

std::int64_t columns_of(const Shape& shape) { return std::max<std::int64_t>(shape.back(), 1); }
std::int64_t rows_of(const Shape& shape) { return shape.elements() / columns_of(shape); }
std::int64_t rows_of_matrix(const Shape& shape) {
  return shape.rank() > 1 ? shape[shape.rank() - 2] : rows_of(shape);
}
std::int64_t rows_of_slab(const Shape& shape, std::int64_t values) {
  return std::max<std::int64_t>(1, values / columns_of(shape));
}

// `values` are rows of one matrix of a tensor of this shape, from row `first` of all matrices on.
void refuse_infinite(std::span<const float> values, const Shape& shape, std::int64_t first) {
  const auto wrong =
      std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  if (wrong == values.end()) return;
  const std::int64_t at = wrong - values.begin(), columns = columns_of(shape),
                     of_matrix = rows_of_matrix(shape);
  fail(ErrorKind::kBadInput,
       {fmt::format("holds {} at row {}, column {}{}", std::isnan(*wrong) ? "NaN" : "an infinity",
                    first % of_matrix + at / columns, at % columns,
                    shape.rank() > 2 ? fmt::format(" of matrix {}", first / of_matrix) : ""),
        {},
        {},
        "get the checkpoint again"});
}

}  // namespace

std::vector<GgufSlab> slabs_of(const Shape& shape, std::size_t tensor, std::int64_t values) {
  const std::int64_t rows = rows_of(shape), of_matrix = rows_of_matrix(shape),
                     most = rows_of_slab(shape, values);
  std::vector<GgufSlab> slabs;
  for (std::int64_t first = 0; first < rows; first += slabs.back().count)
    slabs.push_back({tensor, first, std::min({most, rows - first, of_matrix - first % of_matrix}), false});
  if (!slabs.empty()) slabs.back().last = true;
  return slabs;
}

bool is_copied(const GgufMixTensor& tensor, DType type, bool copies) {
  if (tensor.stored != type) return false;
  if (type == DType::kMXFP4 || type == DType::kNVFP4) return true;  // no rounding would give them again
  return copies && type != DType::kF32 && type != DType::kF16 && type != DType::kBF16;
}

std::vector<std::byte> copied_slab(GgufTensorSource& source, const GgufSlab& slab) {
  const GgufMixTensor& tensor = source.tensors()[slab.tensor];
  std::vector<std::byte> bytes = source.stored_rows(slab.tensor, slab.first, slab.count);
  if (!is_float(tensor.stored)) return bytes;
  const Shape rows{slab.count, columns_of(tensor.shape)};
  std::vector<float> values(static_cast<std::size_t>(rows.elements()));
  to_float32(TensorView(static_cast<const void*>(bytes.data()), tensor.stored, rows), values);
  refuse_infinite(values, tensor.shape, slab.first);
  return bytes;
}

std::vector<std::byte> rounded_slab(GgufTensorSource& source, const GgufSlab& slab, DType type,
                                    std::span<const float> importance, BlockSearch search, ThreadPool& pool) {
  const GgufMixTensor& tensor = source.tensors()[slab.tensor];
  const std::int64_t columns = tensor.shape.back(), matrix = slab.first / rows_of_matrix(tensor.shape);
  const std::vector<float> values = source.rows(slab.tensor, slab.first, slab.count);
  refuse_infinite(values, tensor.shape, slab.first);
  std::vector<std::byte> bytes(static_cast<std::size_t>(ggml_row_bytes(type, columns)) *
                               static_cast<std::size_t>(slab.count));
  if (type == DType::kF32)
    std::memcpy(bytes.data(), values.data(), bytes.size());
  else
    quantize_ggml_rows(type, values, columns, importance_of_matrix(importance, columns, matrix), search,
                       bytes, pool);
  return bytes;
}

std::uint64_t largest_slab_bytes(const Shape& shape, DType type, std::int64_t values) {
  if (shape.elements() == 0) return 0;
  return ggml_row_bytes(type, shape.back()) *
         static_cast<std::uint64_t>(std::min(rows_of_slab(shape, values), rows_of(shape)));
}

}  // namespace llmq
