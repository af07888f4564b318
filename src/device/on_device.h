// What backends share about where tensors lie: the check that they are on the backend's own device, and the
// copies of a backend whose memory the host can reach. Shapes are the caller's facts.
#pragma once
#include <cstring>
#include <initializer_list>

#include "base/error.h"
#include "device/backend.h"
#include "tensor/tensor_view.h"

namespace llmq {

// Error(kInternal) naming the operation when a view (empty ones aside) belongs to another device.
inline void require_on(Device device, const char* operation, std::initializer_list<const TensorView*> views) {
  for (const TensorView* view : views) {
    if (view->pointer == nullptr || view->device == device) continue;
    fail(ErrorKind::kInternal, "{} was given a tensor of shape {} that is not on its device", operation,
         view->shape.text());
  }
}

// Error(kInternal) where the rows before a call of Backend::gram() end inside what is summed at once.
inline void require_gram_start(std::int64_t before) {
  if (before % kGramTokens != 0)
    fail(ErrorKind::kInternal, "rows of a Gram matrix follow {} others, which is no multiple of {}", before,
         kGramTokens);
}

// Calls move(offset in the contiguous host bytes, bytes of a row, the row in `view`) for each row: the tensor
// may be a slice of columns.
template <typename Move>
void for_each_row(const TensorView& view, const Move& move) {
  const auto element = static_cast<std::size_t>(element_bytes(view.dtype));
  const std::size_t bytes = static_cast<std::size_t>(view.cols()) * element;
  for (std::int64_t row = 0; row < view.rows(); ++row)
    move(static_cast<std::size_t>(row) * bytes, bytes,
         view.as<char>() + static_cast<std::size_t>(row * view.row_stride) * element);
}

inline void copy_from_host(const TensorView& to, const void* from) {
  for_each_row(to, [&](std::size_t offset, std::size_t bytes, char* row) {
    std::memcpy(row, static_cast<const char*>(from) + offset, bytes);
  });
}

inline void copy_to_host(void* to, const TensorView& from) {
  for_each_row(from, [&](std::size_t offset, std::size_t bytes, const char* row) {
    std::memcpy(static_cast<char*>(to) + offset, row, bytes);
  });
}

}  // namespace llmq
