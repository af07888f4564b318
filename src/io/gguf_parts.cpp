#include "io/gguf_parts.h"

#include <cmath>
#include <limits>
#include <memory>

#include "base/threads.h"
#include "io/checkpoint_reader.h"
#include "io/gguf.h"

namespace llmq {

float minus_exp(float x) { return -static_cast<float>(std::exp(static_cast<double>(x))); }

// Of the neighbours that round to it there is one that gives the same number again, if any does.
float inverse_minus_exp(float value) {
  const auto x = static_cast<float>(std::log(-static_cast<double>(value)));
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  for (const float near : {x, std::nextafter(x, kInfinite), std::nextafter(x, -kInfinite)})
    if (minus_exp(near) == value) return near;
  return x;
}

// To the last tensor.
void CheckpointReader::add_pieces(const NamedGgufTensor& named, const std::vector<GgufTensor>& tensors) {
  auto pieces = std::make_shared<std::vector<StoredTensor::Piece>>();
  for (const auto& [index, part] : named.pieces) {
    const GgufTensor& own = tensors[index];
    pieces->push_back(
        {TensorView(static_cast<const void*>(own.data), own.dtype, own.shape), own.part, own.offset, part});
  }
  StoredTensor& tensor = state_->tensors.back();
  if (pieces->size() > 1) {
    tensor.view = TensorView(static_cast<const void*>(nullptr), DType::kF32, pieces->front().part.whole);
    tensor.offset = 0;
  }
  tensor.pieces = std::move(pieces);
}

// Every row of a part has places of its own in `into`.
void Checkpoint::read_gguf_parts(const StoredTensor& tensor, std::span<float> into, ThreadPool& pool) const {
  const std::int64_t of_whole = GgufPart::width_of(tensor.view.shape);
  for (const StoredTensor::Piece& piece : *tensor.pieces) {
    const GgufPart& part = piece.part;
    const std::int64_t width = GgufPart::width_of(part.shape), rows = part.shape.elements() / width,
                       each = part.turned ? part.shape[1] : 1;
    const std::uint64_t row_bytes = piece.view.bytes() / static_cast<std::uint64_t>(rows);
    const Lease lease = state_->mapping(piece).lease(piece.offset, piece.view.bytes());
    pool.parallel_for(static_cast<std::size_t>(rows), [&](std::size_t at, int) {
      const auto row = static_cast<std::int64_t>(at);
      std::vector<float> values(static_cast<std::size_t>(width));
      to_float32(TensorView(static_cast<const void*>(piece.view.as<const std::byte>() +
                                                     static_cast<std::uint64_t>(row) * row_bytes),
                            piece.view.dtype, Shape{width}),
                 values);
      for (std::int64_t c = 0; c < width; ++c) {
        const float value = values[static_cast<std::size_t>(c)];
        const std::int64_t place = part.turned ? part.rows(row / each * width + c) * of_whole + row % each
                                               : part.rows(row) * of_whole + part.columns(c);
        into[static_cast<std::size_t>(place)] = part.minus_exp ? inverse_minus_exp(value) : value;
      }
    });
  }
}

}  // namespace llmq
