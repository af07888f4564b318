// The logits of all positions of one sequence.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine.h"

namespace llmq::testing {

// FP32 [ids, vocabulary], from an empty cache.
inline std::vector<float> logits_of(Engine& engine, std::span<const std::int32_t> ids) {
  KvSequence sequence(engine.cache());
  const Buffer hidden = engine.forward(sequence, ids);
  const Shape shape{static_cast<std::int64_t>(ids.size()), engine.spec().hidden_size};
  const TensorView logits = engine.logits(hidden.view(DType::kF32, shape));
  std::vector<float> values(static_cast<std::size_t>(logits.shape.elements()));
  engine.backend().download(values.data(), logits);
  return values;
}

}  // namespace llmq::testing
