#include "device/exchange.h"

#include <cstring>

namespace llmq {

void Exchange::copy(Backend& from_backend, const TensorView& from, Backend& to_backend, const TensorView& to) {
  whole_.resize(static_cast<std::size_t>(from.bytes()));
  from_backend.download(whole_.data(), from);
  to_backend.upload(to, whole_.data());
}

void Exchange::gather(std::span<Backend* const> backends, std::span<const TensorView> parts, std::span<const TensorView> wholes) {
  const TensorView& like = wholes.front();
  const auto rows = static_cast<std::size_t>(like.rows());
  const std::size_t row_bytes = rows == 0 ? 0 : static_cast<std::size_t>(like.bytes()) / rows;
  whole_.resize(rows * row_bytes);
  std::size_t offset = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto bytes = static_cast<std::size_t>(parts[i].bytes());
    part_.resize(bytes);
    backends[i]->download(part_.data(), parts[i]);
    const std::size_t width = rows == 0 ? 0 : bytes / rows;
    for (std::size_t row = 0; row < rows; ++row) std::memcpy(whole_.data() + row * row_bytes + offset, part_.data() + row * width, width);
    offset += width;
  }
  for (std::size_t i = 0; i < wholes.size(); ++i) backends[i]->upload(wholes[i], whole_.data());
}

}  // namespace llmq
