#include "device/upload_values.h"

namespace llmq {
namespace {

Buffer upload(Backend& backend, DType dtype, const void* values, std::size_t count) {
  if (count == 0) return {};
  Buffer buffer = backend.allocate(count * static_cast<std::size_t>(element_bytes(dtype)));
  backend.upload(buffer.view(dtype, {static_cast<std::int64_t>(count)}), values);
  return buffer;
}

}  // namespace

Buffer upload_values(Backend& backend, std::span<const float> values) {
  return upload(backend, DType::kF32, values.data(), values.size());
}

Buffer upload_values(Backend& backend, std::span<const std::int32_t> values) {
  return upload(backend, DType::kI32, values.data(), values.size());
}

}  // namespace llmq
