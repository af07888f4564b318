#include "quant/pipeline/block_weights.h"

namespace llmq {
namespace {

Buffer on_device(Backend& backend, const std::vector<float>& values) {
  Buffer buffer = backend.allocate(values.size() * sizeof(float));
  backend.upload(buffer.view(DType::kF32, {static_cast<std::int64_t>(values.size())}), values.data());
  return buffer;
}

BlockWeights load_finished_block(Backend& backend, const QuantizeRun& run, const LinearSource& written,
                                 const std::set<std::string>& changed, int block) {
  const BlockSpec& structure = run.spec.blocks.at(static_cast<std::size_t>(block));
  const bool allow = run.options.allow_nonfinite;
  const auto source_of = [&](const std::string& tensor) -> const LinearSource& {
    return changed.count(tensor) != 0 ? written : run.source;
  };
  const auto vector = [&](const std::string& tensor) {
    return tensor.empty() ? Buffer() : on_device(backend, source_of(tensor).tensor(tensor, allow));
  };
  BlockWeights weights;
  for (const LinearSpec& linear : structure.linears) {
    const bool packed = run.planned.count(linear.module) != 0;
    BlockLinear& prepared = weights.linear(linear.role);
    prepared = prepare_linear(backend, run.plan.compute, packed ? written : run.source, linear, allow);
    if (!packed) continue;
    prepared.bias = load_bias(backend, source_of(linear.module + ".bias"), linear, allow);
  }
  weights.input_norm = vector(structure.input_norm);
  weights.post_attention_norm = vector(structure.post_attention_norm);
  weights.query_norm = vector(structure.query_norm);
  weights.key_norm = vector(structure.key_norm);
  return weights;
}

}  // namespace

Lease hold_weight(const QuantizeRun& run, const LinearSpec& linear) {
  const Checkpoint& checkpoint = run.source.checkpoint();
  const StoredTensor* weight =
      run.options.further_devices.empty() ? nullptr : checkpoint.find(linear.module + ".weight");
  return weight == nullptr ? Lease() : checkpoint.hold(*weight);
}

std::vector<BlockWeights> load_on_devices(const QuantizeRun& run, int block,
                                          std::span<const LinearRole> roles) {
  std::vector<Lease> leases;
  for (const LinearRole role : roles)
    leases.push_back(hold_weight(run, run.spec.blocks.at(static_cast<std::size_t>(block)).linear(role)));
  std::vector<BlockWeights> weights;
  for (Backend* const backend : run.devices())
    weights.push_back(load_block(*backend, run.plan.compute, run.source, run.spec, block,
                                 run.options.allow_nonfinite, roles));
  return weights;
}

std::vector<BlockWeights> load_finished_block(const QuantizeRun& run, const LinearSource& written,
                                              const std::set<std::string>& changed, int block) {
  std::vector<Lease> leases;
  for (const LinearSpec& linear : run.spec.blocks.at(static_cast<std::size_t>(block)).linears)
    if (run.planned.count(linear.module) == 0) leases.push_back(hold_weight(run, linear));
  std::vector<BlockWeights> weights;
  for (Backend* const backend : run.devices())
    weights.push_back(load_finished_block(*backend, run, written, changed, block));
  return weights;
}

}  // namespace llmq
