#include "device/exchange.h"

#include <cstring>

namespace llmq {
namespace {

std::size_t row_bytes(const TensorView& view) {
  return static_cast<std::size_t>(view.cols()) * static_cast<std::size_t>(element_bytes(view.dtype));
}

TensorView columns_of(const TensorView& whole, std::int64_t first, std::int64_t count) {
  TensorView columns = whole;
  columns.pointer = whole.as<char>() +
                    static_cast<std::size_t>(first) * static_cast<std::size_t>(element_bytes(whole.dtype));
  columns.shape = {whole.rows(), count};
  return columns;
}

// Memory of the host is open to all; devices that can reach one another copy by themselves.
bool copy_directly(Backend& from_backend, const TensorView& from, Backend& to_backend, const TensorView& to) {
  if (from.device != Device{} || to.device != Device{}) return to_backend.copy_from(to, from_backend, from);
  const auto element = static_cast<std::size_t>(element_bytes(to.dtype));
  for (std::int64_t row = 0; row < to.rows(); ++row)
    std::memcpy(to.as<char>() + static_cast<std::size_t>(row * to.row_stride) * element,
                from.as<const char>() + static_cast<std::size_t>(row * from.row_stride) * element,
                row_bytes(from));
  return true;
}

}  // namespace

void Exchange::copy(Backend& from_backend, const TensorView& from, Backend& to_backend,
                    const TensorView& to) {
  if (copy_directly(from_backend, from, to_backend, to)) return;
  whole_.resize(static_cast<std::size_t>(from.bytes()));
  from_backend.download(whole_.data(), from);
  to_backend.upload(to, whole_.data());
}

void Exchange::gather(std::span<Backend* const> backends, std::span<const TensorView> parts,
                      std::span<const TensorView> wholes) {
  if (wholes.front().rows() == 0) return;
  for (std::size_t to = 0; to < wholes.size(); ++to) {
    std::int64_t first = 0;
    for (std::size_t from = 0; from < parts.size(); first += parts[from++].cols())
      if (!copy_directly(*backends[from], parts[from], *backends[to],
                         columns_of(wholes[to], first, parts[from].cols())))
        return gather_on_host(backends, parts, wholes);
  }
}

// Every part down once and the whole up once for each.
void Exchange::gather_on_host(std::span<Backend* const> backends, std::span<const TensorView> parts,
                              std::span<const TensorView> wholes) {
  const auto rows = static_cast<std::size_t>(wholes.front().rows());
  const std::size_t whole_bytes = row_bytes(wholes.front());
  whole_.resize(rows * whole_bytes);
  std::size_t offset = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t bytes = row_bytes(parts[i]);
    part_.resize(rows * bytes);
    backends[i]->download(part_.data(), parts[i]);
    for (std::size_t row = 0; row < rows; ++row)
      std::memcpy(whole_.data() + row * whole_bytes + offset, part_.data() + row * bytes, bytes);
    offset += bytes;
  }
  for (std::size_t i = 0; i < wholes.size(); ++i) backends[i]->upload(wholes[i], whole_.data());
}

}  // namespace llmq
