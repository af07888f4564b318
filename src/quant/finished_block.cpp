#include "quant/finished_block.h"

#include <optional>

namespace llmq {
namespace {

Buffer on_device(Backend& backend, const std::vector<float>& values) {
  Buffer buffer = backend.allocate(values.size() * sizeof(float));
  backend.upload(buffer.view(DType::kF32, {static_cast<std::int64_t>(values.size())}), values.data());
  return buffer;
}

}  // namespace

BlockWeights load_finished_block(QuantizeRun& run, const LinearSource& written,
                                 const std::set<std::string>& changed, int block) {
  const BlockSpec& structure = run.spec.blocks.at(static_cast<std::size_t>(block));
  const bool allow = run.options.allow_nonfinite;
  const auto source_of = [&](const std::string& tensor) -> const LinearSource& {
    return changed.count(tensor) != 0 ? written : run.source;
  };
  const auto vector = [&](const std::string& tensor) {
    return tensor.empty() ? Buffer() : on_device(run.backend, source_of(tensor).tensor(tensor, allow));
  };
  BlockWeights weights;
  for (const LinearSpec& linear : structure.linears) {
    const bool packed = run.planned.count(linear.module) != 0;
    BlockLinear& prepared = weights.linear(linear.role);
    prepared = prepare_linear(run.backend, run.plan.compute, packed ? written : run.source, linear, allow);
    if (!packed) continue;
    const std::optional<std::vector<float>> bias = source_of(linear.module + ".bias").bias(linear, allow);
    prepared.bias = bias ? on_device(run.backend, *bias) : Buffer();
  }
  weights.input_norm = vector(structure.input_norm);
  weights.post_attention_norm = vector(structure.post_attention_norm);
  weights.query_norm = vector(structure.query_norm);
  weights.key_norm = vector(structure.key_norm);
  return weights;
}

void run_finished_block(QuantizeRun& run, const LinearSource& written, const std::set<std::string>& changed,
                        int block, ActivationStream& stream) {
  const BlockWeights weights = load_finished_block(run, written, changed, block);
  stream.finish_attention(block, weights);
  stream.finish_mlp(weights);
  if (run.original != nullptr) {
    OriginalStream& original = *run.original;
    original.weights =
        load_block(run.backend, run.plan.compute, run.source, run.spec, block, run.options.allow_nonfinite);
    original.stream.finish_attention(block, original.weights);
    original.stream.finish_mlp(original.weights);
    original.weights = {};
  }
  run.clock.charge("finished blocks");
}

}  // namespace llmq
