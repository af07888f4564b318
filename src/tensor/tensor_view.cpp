#include "tensor/tensor_view.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace llmq {

Shape::Shape(std::span<const std::int64_t> extents) {
  if (extents.size() > static_cast<std::size_t>(kMaxRank))
    fail(ErrorKind::kBadInput, "a tensor of rank {} is beyond the {} dimensions read here", extents.size(),
         kMaxRank);
  for (const std::int64_t extent : extents)
    if (extent < 0) fail(ErrorKind::kBadInput, "a dimension of {} is below zero", extent);
  std::copy(extents.begin(), extents.end(), extents_.begin());
  rank_ = static_cast<int>(extents.size());
}

std::int64_t Shape::elements() const {
  std::int64_t product = 1;
  for (int axis = 0; axis < rank_; ++axis) product *= (*this)[axis];
  return product;
}

std::string Shape::text() const {
  std::string out = "[";
  for (int axis = 0; axis < rank_; ++axis) out += fmt::format("{}{}", axis == 0 ? "" : ", ", (*this)[axis]);
  return out + "]";
}

std::uint64_t TensorView::bytes() const {
  const DTypeRow& row = dtype_row(dtype);
  if (is_narrower_than_a_byte(dtype))
    return stored_bytes(dtype, static_cast<std::uint64_t>(shape.elements())).value_or(0);
  const auto block = static_cast<std::uint64_t>(row.block_elements);
  const std::uint64_t blocks_per_row = ceil_div(static_cast<std::uint64_t>(cols()), block);
  return static_cast<std::uint64_t>(rows()) * blocks_per_row * static_cast<std::uint64_t>(row.block_bytes);
}

TensorView TensorView::row_slice(std::int64_t first, std::int64_t count) const {
  if (shape.rank() != 2 || dtype_row(dtype).block_elements > 1 || first < 0 || count < 0 ||
      first > shape[0] - count)
    fail(ErrorKind::kInternal, "rows {} to {} of a {} tensor {}", first, first + count, dtype_row(dtype).name,
         shape.text());
  TensorView slice = *this;
  slice.shape = Shape{count, shape[1]};
  slice.pointer = static_cast<std::byte*>(pointer) + first * row_stride * element_bytes(dtype);
  return slice;
}

}  // namespace llmq
