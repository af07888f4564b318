// The logits of a golden model by the reference kernels in FP32, of its own tensors or of changed ones.
#pragma once
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/io.h"
#include "golden_models.h"
#include "io/safetensors.h"
#include "model/open_checkpoint.h"
#include "runtime/engine.h"
#include "support/logits_of.h"
#include "support/temporary_directory.h"

namespace llmq::testing {

using Tensors = std::map<std::string, std::pair<Shape, std::vector<float>>>;

inline Path model_folder(const std::string& name) { return golden_folder() / name / "model"; }

inline Tensors read_tensors(const Checkpoint& checkpoint) {
  Tensors tensors;
  for (const StoredTensor& tensor : checkpoint.tensors())
    tensors[tensor.name] = {tensor.view.shape, checkpoint.read_float32(tensor)};
  return tensors;
}

inline std::vector<float> logits_of(const Checkpoint& checkpoint) {
  const std::vector<std::int32_t> ids = {5, 17, 3, 42, 96, 8, 33, 61, 17, 5, 70, 29};
  Engine::Options options;
  options.compute = Compute::kFloat32;
  options.max_context = static_cast<std::int64_t>(ids.size());
  options.kv_tokens = 16;
  Engine engine = Engine::load(checkpoint, make_reference_backend(), options);
  return logits_of(engine, ids);
}

// These tensors as FP32, beside the config of `model`.
inline Checkpoint write_model(const Tensors& tensors, const Path& model, const Path& into) {
  std::vector<TensorDeclaration> declarations;
  for (const auto& [name, tensor] : tensors) declarations.push_back({name, DType::kF32, tensor.first});
  SafetensorsWriter writer(system_io(), into / "model.safetensors", declarations, {});
  for (const auto& [name, tensor] : tensors) writer.add(name, std::as_bytes(std::span(tensor.second)));
  writer.finish();
  write_text_atomically(system_io(), into / "config.json", read_text(system_io(), model / "config.json"));
  return open_checkpoint(system_io(), into.string());
}

inline std::vector<float> logits_of(const Tensors& tensors, const Path& model) {
  const TemporaryDirectory directory;
  return logits_of(write_model(tensors, model, directory.path()));
}

}  // namespace llmq::testing
