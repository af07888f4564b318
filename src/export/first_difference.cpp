#include "export/first_difference.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "io/gguf.h"
#include "io/safetensors.h"

namespace llmq {
namespace {

struct TensorPosition {
  std::string name;
  std::uint64_t offset = 0, bytes = 0;
  bool operator==(const TensorPosition&) const = default;
};

std::vector<TensorPosition> places_in(std::span<const std::byte> bytes, const Path& file) {
  std::vector<TensorPosition> places;
  if (file.extension() == ".gguf")
    for (const GgufTensor& tensor : parse_gguf(bytes, file.string()).tensors)
      places.push_back({tensor.name, tensor.offset, tensor.bytes});
  else
    for (const SafetensorsEntry& entry : parse_safetensors(bytes, file.string()).entries)
      places.push_back({entry.name, entry.offset, entry.bytes});
  return places;
}

// A piece at a time, whose pages are given back: a tensor may be larger than there is memory.
bool same_bytes(const Mapping& a, const Mapping& b, std::uint64_t offset, std::uint64_t bytes) {
  constexpr std::uint64_t kComparedPiece = 16u << 20;
  for (std::uint64_t done = 0; done < bytes; done += kComparedPiece) {
    const std::uint64_t at = offset + done, count = std::min(kComparedPiece, bytes - done);
    const bool same = std::memcmp(a.bytes().data() + at, b.bytes().data() + at, count) == 0;
    a.release(at, count);
    b.release(at, count);
    if (!same) return false;
  }
  return true;
}

std::string compare(Io& io, const Path& a, const Path& b) {
  const std::unique_ptr<Mapping> first = io.open(a)->map(), second = io.open(b)->map();
  const std::vector<TensorPosition> places = places_in(first->bytes(), a);
  const std::uint64_t tables = places.empty() ? 0 : places.front().offset;
  if (places != places_in(second->bytes(), b) || !same_bytes(*first, *second, 0, tables))
    return "the table of tensors";
  for (const TensorPosition& place : places)
    if (!same_bytes(*first, *second, place.offset, place.bytes)) return place.name;
  return {};
}

}  // namespace

std::string first_difference(Io& io, const Path& a, const Path& b) {
  if (a.extension() != b.extension() || (a.extension() != ".gguf" && a.extension() != ".safetensors"))
    return {};
  try {
    return compare(io, a, b);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kBadInput) return {};
    throw;
  }
}

}  // namespace llmq
