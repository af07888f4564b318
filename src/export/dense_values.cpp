#include "export/dense_values.h"

#include <algorithm>

#include "base/error.h"
#include "model/tensor_reading.h"
#include "tensor/stored_float.h"

namespace llmq {

void store_values(std::span<const float> values, DType dtype, const std::string& tensor,
                  const std::string& file, std::byte* into) {
  for (const float value : values)
    if (dtype == DType::kF16 && storing_overflows(value, dtype))
      fail(ErrorKind::kUnsupported, {fmt::format("holds {}, and F16 ends at 65504", value), file, tensor,
                                     "ask for --dtype bf16 or f32"});
  store_floats(values, dtype, into);
}

std::vector<std::byte> converted_tensor(const Checkpoint& checkpoint, const StoredTensor& tensor,
                                        DType dtype) {
  const std::string file = checkpoint.path().string();
  const std::size_t width = static_cast<std::size_t>(element_bytes(dtype));
  const std::int64_t elements = tensor.view.shape.elements();
  std::vector<std::byte> bytes(static_cast<std::size_t>(elements) * width);
  if (!tensor.in_order() || is_block_type(tensor.view.dtype)) {
    store_values(
        tensor.is_scaled() ? read_finite(checkpoint, tensor, false) : checkpoint.read_float32(tensor), dtype,
        tensor.name, file, bytes.data());
    return bytes;
  }
  constexpr std::int64_t kWindow = 1 << 16;
  std::vector<float> window(static_cast<std::size_t>(std::min(elements, kWindow)));
  const Lease lease = checkpoint.hold(tensor);
  const auto* from = static_cast<const std::byte*>(tensor.view.pointer);
  for (std::int64_t first = 0; first < elements; first += kWindow) {
    const std::int64_t count = std::min(kWindow, elements - first);
    const auto part = std::span(window).first(static_cast<std::size_t>(count));
    to_float32(TensorView(static_cast<const void*>(from + first * element_bytes(tensor.view.dtype)),
                          tensor.view.dtype, {count}),
               part);
    store_values(part, dtype, tensor.name, file, bytes.data() + static_cast<std::size_t>(first) * width);
  }
  return bytes;
}

}  // namespace llmq
