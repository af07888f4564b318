#include "model/output_head.h"

#include "model/decoder_block.h"

namespace llmq {

std::unique_ptr<PreparedWeight> prepare_head(Backend& backend, Compute compute, const LinearSource& source,
                                             const ModelSpec& spec) {
  constexpr std::string_view kSuffix = ".weight";
  LinearSpec head;
  head.module = spec.head;
  if (head.module.ends_with(kSuffix)) head.module.resize(head.module.size() - kSuffix.size());
  if (source.is_packed(head.module)) {
    head.out_features = spec.vocab_size;
    head.in_features = spec.hidden_size;
    return prepare_linear(backend, compute, source, head).weight;
  }
  const Checkpoint& checkpoint = source.checkpoint();
  const bool tied = spec.head == spec.embedding;
  const StoredTensor& tensor = tied ? checkpoint.at(spec.head) : source.finite(spec.head);
  const DType dtype = tensor.view.dtype;
  if (dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16) {
    auto prepared = backend.prepare(tensor.view, compute);
    if (!tied) checkpoint.release(tensor);
    return prepared;
  }
  const std::vector<float> values = checkpoint.read_float32(tensor);
  return backend.prepare(TensorView(values.data(), DType::kF32, tensor.view.shape), compute);
}

}  // namespace llmq
