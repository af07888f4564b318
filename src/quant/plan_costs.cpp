#include "quant/plan_costs.h"

#include <algorithm>
#include <map>
#include <set>

#include "export/report.h"

namespace llmq {
namespace {

// Program, libraries with their generated code, tokenizer and the calibration text while it is cut.
constexpr std::uint64_t kProgramBytes = std::uint64_t{64} << 20;
// Differences judged at a time (quant/gram_loss.cpp) and the stages' own scratch (model/decoder_block.cpp).
constexpr std::uint64_t kScratchBytes = std::uint64_t{36} << 20;

std::uint64_t positive(std::int64_t value) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(value, 0));
}

struct BlockSizes {
  std::uint64_t weights = 0;       // of the widest block, elements
  std::uint64_t site_weights = 0;  // of the linears worked on at once: both ends of a fold
  std::uint64_t channels = 0;      // of the widest input
};

BlockSizes measure_blocks(const ModelSpec& spec) {
  BlockSizes sizes;
  for (const BlockSpec& block : spec.blocks) {
    std::uint64_t whole = 0, attention = 0, mlp = 0;
    for (const LinearSpec& linear : block.linears) {
      const std::uint64_t count = positive(linear.out_features) * positive(linear.in_features);
      const bool in_mlp = linear.site == InputSite::kMlp || linear.site == InputSite::kDown;
      whole += count;
      (in_mlp ? mlp : attention) += count;
      sizes.channels = std::max(sizes.channels, positive(linear.in_features));
    }
    sizes.weights = std::max(sizes.weights, whole);
    sizes.site_weights = std::max({sizes.site_weights, attention, mlp});
  }
  return sizes;
}

std::uint64_t largest_dense_tensor(const Plan& plan, const Checkpoint& checkpoint) {
  std::set<std::string> packed;
  for (const PlannedModule& m : plan.modules) packed.insert(m.module + ".weight");
  std::uint64_t largest = 0;
  for (const StoredTensor& tensor : checkpoint.tensors())
    if (packed.count(tensor.name) == 0) largest = std::max(largest, tensor.view.bytes());
  return largest;
}

void estimate_memory(Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec) {
  const BlockSizes sizes = measure_blocks(spec);
  plan.memory.clear();
  plan.peak_bytes = 0;
  const auto add = [&](const char* what, std::uint64_t bytes) {
    plan.memory.push_back({what, bytes});
    plan.peak_bytes += bytes;
  };
  const std::uint64_t element = plan.compute == Compute::kBFloat16 ? 2 : 4;
  add("program, tokenizer, text", kProgramBytes);
  if (!plan.needs_calibration) {
    add("one linear in FP32 with its codes", sizes.site_weights * 6);
    add("largest dense tensor while it is copied", largest_dense_tensor(plan, checkpoint));
    return;
  }
  const std::uint64_t tokens =
      positive(plan.calibration.samples) * positive(plan.calibration.sequence_length);
  const std::uint64_t chunk = std::min(tokens, positive(plan.chunk_tokens)),
                      hidden = positive(spec.hidden_size);
  const std::uint64_t kv = positive(spec.kv_heads) * positive(spec.head_dim);
  const std::uint64_t wide =
      std::max(positive(spec.intermediate_size), positive(spec.heads) * positive(spec.head_dim));
  const std::uint64_t k = sizes.channels;
  add("residual stream of all samples (FP32)", tokens * hidden * 4);
  add("activations of one chunk", chunk * (hidden + 2 * kv) * element);
  add("stage and search scratch", kScratchBytes);
  add("one block as prepared", sizes.weights * element);
  add("linears of one stage in FP32, scaled, dequantized, with codes", sizes.site_weights * 10);
  add("Gram triangle (FP64) and its squares (FP32)", k * (k + 1) / 2 * 8 + 2 * k * k * 4 + k * k * element);
  // The embedding's pages are there before the first of these inputs and after the last.
  add("inputs of o and down, or the embedding",
      std::max((plan.keep_inputs ? tokens : chunk) * wide * element, largest_dense_tensor(plan, checkpoint)));
}

double estimate_flops(const Plan& plan, const ModelSpec& spec) {
  if (!plan.needs_calibration) return 0;
  const double tokens =
      static_cast<double>(plan.calibration.samples) * static_cast<double>(plan.calibration.sequence_length);
  const double candidates =
      static_cast<double>(plan.awq.grid) * (plan.awq.duo_scaling == AwqOptions::Duo::kBoth ? 2 : 1);
  double flops = 0;
  for (const BlockSpec& block : spec.blocks) {
    std::map<InputSite, double> rows;
    for (const LinearSpec& linear : block.linears) {
      const double n = static_cast<double>(linear.out_features), k = static_cast<double>(linear.in_features);
      const bool last = linear.role == LinearRole::kOutput || linear.role == LinearRole::kDown;
      flops += 2 * n * k * tokens * (last ? 1 : 2);  // once for the inner input's statistics, once quantized
      rows[linear.site] += n;
      flops += 4 * 2 * n * k * k;  // losses of every row
    }
    for (const LinearSpec& linear : block.linears) {
      if (rows.count(linear.site) == 0) continue;
      const double k = static_cast<double>(linear.in_features);
      flops += k * k * tokens;  // one triangle
      flops += (candidates * std::min(rows[linear.site], 256.0) + 4 * rows[linear.site]) * 2 * k *
               k;  // scale search
      rows.erase(linear.site);
    }
  }
  return flops;
}

}  // namespace

void estimate_costs(Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec, int) {
  estimate_memory(plan, checkpoint, spec);
  plan.flops = estimate_flops(plan, spec);
  plan.bytes_in = checkpoint.tensor_bytes();
  std::set<std::string> packed;
  std::uint64_t weights = 0, dense = 0;
  for (const PlannedModule& m : plan.modules) {
    packed.insert(m.module + ".weight");
    weights += positive(m.out_features) * positive(m.in_features);
  }
  for (const StoredTensor& tensor : checkpoint.tensors())
    if (packed.count(tensor.name) == 0)
      dense += positive(tensor.view.shape.elements()) *
               static_cast<std::uint64_t>(element_bytes(written_dtype(tensor)));
  plan.bytes_out = dense + static_cast<std::uint64_t>(stored_bits_per_weight(plan.format, plan.modules) *
                                                      static_cast<double>(weights) / 8);
}

}  // namespace llmq
