#include "quant/pipeline/block_weights.h"

namespace llmq {
namespace {

BlockWeights load_written_block(Backend& backend, const QuantizeRun& run, const LinearSource& written,
                                const std::set<std::string>& changed, int block) {
  const BlockSpec& structure = run.spec.blocks.at(static_cast<std::size_t>(block));
  const bool allow = run.options.allow_nonfinite;
  const auto source_of = [&](const std::string& tensor) -> const LinearSource& {
    return changed.count(tensor) != 0 ? written : run.source;
  };
  BlockWeights weights(structure);
  for (const LinearSpec& linear : structure.linears) {
    const bool packed = run.planned.count(linear.module) != 0;
    BlockLinear& prepared = weights.at(linear.id);
    prepared = prepare_linear(backend, run.plan.compute, packed ? written : source_of(linear.weight.tensor),
                              linear, allow);
    if (packed && linear.has_bias())
      load_bias(backend, source_of(linear.bias.tensor), linear, allow, prepared);
  }
  for (std::size_t i = 0; i < structure.norms.size(); ++i) {
    const NormSpec& norm = structure.norms[i];
    const auto read = [&](const TensorPlace& place) {
      return place.exists() ? source_of(place.tensor).tensor(place.tensor, allow) : std::vector<float>();
    };
    weights.norms[i] = load_norm(backend, norm, read(norm.gain), read(norm.bias));
  }
  Backend* const only = &backend;
  load_mixer_tensors({&only, 1}, run.source, structure, allow, {&weights, 1});
  return weights;
}

}  // namespace

Lease hold_weight(const QuantizeRun& run, const LinearSpec& linear) {
  const Checkpoint& checkpoint = run.source.checkpoint();
  const StoredTensor* weight =
      run.options.further_devices.empty() ? nullptr : checkpoint.find(linear.weight.tensor);
  return weight == nullptr ? Lease() : checkpoint.hold(*weight);
}

std::vector<BlockWeights> load_on_devices(const QuantizeRun& run, int block,
                                          std::span<const LinearId> linears) {
  const BlockSpec& structure = run.spec.blocks.at(static_cast<std::size_t>(block));
  std::vector<Lease> leases;
  for (const LinearId id : linears) leases.push_back(hold_weight(run, structure.at(id)));
  std::vector<BlockWeights> weights;
  for (Backend* const backend : run.devices())
    weights.push_back(
        load_block(*backend, run.plan.compute, run.source, structure, linears, run.options.allow_nonfinite));
  return weights;
}

std::vector<BlockWeights> load_on_devices(const QuantizeRun& run, int block) {
  std::vector<LinearId> all;
  for (const LinearSpec& linear : run.spec.blocks.at(static_cast<std::size_t>(block)).linears)
    all.push_back(linear.id);
  return load_on_devices(run, block, all);
}

std::vector<BlockWeights> load_written_block(const QuantizeRun& run, const LinearSource& written,
                                             const std::set<std::string>& changed, int block) {
  std::vector<Lease> leases;
  for (const LinearSpec& linear : run.spec.blocks.at(static_cast<std::size_t>(block)).linears)
    if (run.planned.count(linear.module) == 0) leases.push_back(hold_weight(run, linear));
  std::vector<BlockWeights> weights;
  for (Backend* const backend : run.devices())
    weights.push_back(load_written_block(*backend, run, written, changed, block));
  return weights;
}

}  // namespace llmq
