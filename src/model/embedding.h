// The residual stream before the first block: h = scale * table[token] + positions[position + offset], the
// second only where a model has learned positions. The product is rounded once.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/backend.h"
#include "model/block_weights.h"
#include "model/model_spec.h"

namespace llmq {

// By tables on the backend; hidden F32 [T, hidden_size].
void embed_rows(Backend& backend, const EmbeddingSpec& spec, const TensorView& table,
                const TensorView& positions_table, std::span<const std::int32_t> tokens,
                std::span<const std::int32_t> positions, const TensorView& hidden);

// What blocks multiply (ModelSpec::block_embedding), of `hidden` as it is before the first block: embedded
// F32 [T, blocks * width].
struct BlockEmbeddingWeights {
  TensorView table;
  const PreparedWeight& projection;
  const NormWeights& norm;
};
void embed_blocks(Backend& backend, Compute compute, const BlockEmbeddingSpec& spec,
                  const BlockEmbeddingWeights& weights, std::span<const std::int32_t> tokens,
                  const TensorView& hidden, const TensorView& embedded);

// What one block has of it, of samples one behind another: embedded F32 [T, width], by rows read from the
// checkpoint.
class SampledBlockEmbedding {
 public:
  SampledBlockEmbedding(Backend& backend, Compute compute, const ModelSpec& spec,
                        const Checkpoint& checkpoint, std::size_t block);
  std::size_t block() const { return block_; }
  void embed(std::span<const std::vector<std::int32_t>> samples, const TensorView& embedded) const;

 private:
  Backend& backend_;
  Compute compute_;
  const ModelSpec& spec_;
  const Checkpoint& checkpoint_;
  std::size_t block_;
  std::unique_ptr<PreparedWeight> projection_;
  NormWeights norm_;
};

// By rows read from the checkpoint, for a pass that needs few of them: samples one behind another, each from
// position 0 on.
void embed_samples(Backend& backend, const ModelSpec& spec, const Checkpoint& checkpoint,
                   std::span<const std::vector<std::int32_t>> samples, const TensorView& hidden);

}  // namespace llmq
