// A tensor of a GGUF that is a part of one of Hugging Face's, or several of them together (io/gguf_parts.h).
#include <memory>

#include "io/checkpoint_reader.h"
#include "io/gguf.h"

namespace llmq {

// To the last tensor.
void CheckpointReader::add_pieces(const NamedGgufTensor& named, const std::vector<GgufTensor>& tensors) {
  auto pieces = std::make_shared<std::vector<StoredTensor::Piece>>();
  const std::byte* const file = state_->mappings.back()->bytes().data();
  for (const auto& [index, part] : named.pieces) {
    const GgufTensor& own = tensors[index];
    pieces->push_back(
        {TensorView(static_cast<const void*>(file + own.offset), own.dtype, own.shape), own.offset, part});
  }
  StoredTensor& tensor = state_->tensors.back();
  if (pieces->size() > 1) {
    tensor.view = TensorView(static_cast<const void*>(nullptr), DType::kF32, pieces->front().part.whole);
    tensor.offset = 0;
  }
  tensor.pieces = std::move(pieces);
}

}  // namespace llmq
