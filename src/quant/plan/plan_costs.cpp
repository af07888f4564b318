#include "quant/plan/plan_costs.h"

#include <algorithm>
#include <map>

#include "export/formats/packed_formats.h"
#include "export/output/packed_writer.h"
#include "quant/methods/awq/scale_search.h"
#include "quant/plan/disk_reads.h"
#include "quant/plan/peak_memory.h"

namespace llmq {
namespace {

// The moment that needs most.
std::vector<MemoryItem> greatest(const std::vector<std::vector<MemoryItem>>& moments) {
  return *std::max_element(moments.begin(), moments.end(),
                           [](const auto& a, const auto& b) { return total_bytes(a) < total_bytes(b); });
}

void estimate_memory(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec, int threads,
                     PlanCosts& costs) {
  const PeakMemory run(plan, checkpoint, spec, threads);
  auto moments = plan.needs_calibration ? run.calibrated() : run.rounded();
  if (plan.target_bits) {
    const auto measuring = run.measuring(plan.measured_samples);
    moments.insert(moments.end(), measuring.begin(), measuring.end());
  }
  const bool has_own_memory = plan.device_room.has_value();
  costs.device_bytes =
      has_own_memory || plan.devices.empty() || !plan.needs_calibration ? 0 : run.further_device();
  if (costs.device_bytes > 0)
    for (std::vector<MemoryItem>& moment : moments)
      moment.push_back(
          {"what further devices hold beside their samples", (plan.devices.size() - 1) * costs.device_bytes});
  if (const std::uint64_t held = held_bytes(plan, checkpoint, spec); held != 0)
    for (std::vector<MemoryItem>& moment : moments)
      moment.push_back({"what is held of the checkpoint and read ahead", held});
  costs.memory = greatest(moments);
  costs.peak_bytes = total_bytes(costs.memory);
  if (!has_own_memory || !(plan.needs_calibration || plan.target_bits)) return;
  auto on_device = plan.needs_calibration ? run.on_device() : std::vector<std::vector<MemoryItem>>();
  if (plan.target_bits)
    for (std::vector<MemoryItem>& moment : run.measuring(plan.measured_samples))
      on_device.push_back(std::move(moment));
  costs.device_memory = greatest(on_device);
  costs.device_bytes = total_bytes(costs.device_memory);
}

// Of the samples' rows, which share an expert's linears see: that of a router which spreads them evenly.
std::map<LinearId, double> shares_of_rows(const BlockSpec& block) {
  std::map<LinearId, double> shares;
  const MixtureSpec* const mixture = block.mixture();
  if (mixture == nullptr) return shares;
  const double share = mixture->top_k / static_cast<double>(mixture->experts.size());
  for (const ExpertSpec& expert : mixture->experts)
    for (const LinearId id : expert.linears()) shares[id] = share;
  return shares;
}

// Two for each multiplication with its addition: forward products (once for the statistics of the inner
// input, once by quantized weights), triangles of Gram matrices, quadratic forms of rows, the factor of an
// input and the feedback of its rows. Linears that stay as they are count as the others.
double estimate_flops(const Plan& plan, const ModelSpec& spec) {
  if (!plan.needs_calibration) return 0;
  constexpr double kLosses = 4;  // of each row, by its method's candidates and for the report
  const double all_tokens =
      static_cast<double>(plan.calibration.samples) * static_cast<double>(plan.calibration.sequence_length);
  double flops = 0;
  for (const BlockSpec& block : spec.blocks) {
    const std::map<LinearId, double> shares = shares_of_rows(block);
    const auto tokens_of = [&](const LinearSpec& linear) {
      const auto found = shares.find(linear.id);
      return all_tokens * (found == shares.end() ? 1 : found->second);
    };
    struct Input {
      double channels = 0, tokens = 0;
      std::vector<std::int64_t> readers;  // rows of each
    };
    std::map<SiteId, Input> inputs;
    for (const LinearSpec& linear : block.linears) {
      const double n = static_cast<double>(linear.out_features), k = static_cast<double>(linear.in_features);
      const bool last = block.sublayer_of(linear.site).is_output(linear.id);
      flops += 2 * n * k * tokens_of(linear) * (last ? 1 : 2);
      flops += 2 * n * k * k * (kLosses + (plan.traits->factorizes ? 1 : 0));
      Input& input = inputs.try_emplace(linear.site, Input{k, tokens_of(linear), {}}).first->second;
      input.readers.push_back(linear.out_features);
    }
    for (const auto& [site, input] : inputs) {
      const double square = input.channels * input.channels;
      flops += square * input.tokens;  // one triangle
      if (plan.traits->searches_by_gram)
        flops += static_cast<double>(scale_search_losses(input.readers, plan.awq)) * 2 * square;
      if (plan.traits->factorizes) flops += square * input.channels;  // the factor, and that of its inverse
    }
    if (const MixtureSpec* const mixture = block.mixture(); mixture != nullptr)  // of each expert's own rows
      flops += mixture->top_k * all_tokens * static_cast<double>(mixture->hidden * mixture->hidden);
  }
  return flops;
}

}  // namespace

std::vector<MemoryItem> gguf_memory(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec,
                                    std::uint64_t held, std::uint64_t gathered) {
  const PeakMemory run(plan, checkpoint, spec, 1);
  auto moments = run.gguf_file(plan.needs_calibration, gathered);
  if (plan.needs_calibration)
    for (std::vector<MemoryItem>& moment : run.importance()) moments.push_back(std::move(moment));
  if (held != 0)
    for (std::vector<MemoryItem>& moment : moments)
      moment.push_back({"what is held of the checkpoint and read ahead", held});
  return greatest(moments);
}

double forward_flops(const Plan& plan, const ModelSpec& spec) {
  double weights = 0;
  for (const BlockSpec& block : spec.blocks)
    for (const LinearSpec& linear : block.linears)
      weights += static_cast<double>(linear.out_features) * static_cast<double>(linear.in_features);
  return plan.needs_calibration ? 2 * weights * static_cast<double>(plan.calibration.samples) *
                                      static_cast<double>(plan.calibration.sequence_length)
                                : 0;
}

std::uint64_t total_bytes(std::span<const NamedBytes> parts) {
  std::uint64_t bytes = 0;
  for (const NamedBytes& part : parts) bytes += part.bytes;
  return bytes;
}

Json named_bytes_json(std::span<const NamedBytes> parts) {
  Json list = Json::array();
  for (const NamedBytes& part : parts)
    list.push_back(Json::object({{"what", Json(part.what)}, {"bytes", Json(part.bytes)}}));
  return list;
}

PlanCosts with_reads(PlanCosts costs, std::vector<ReadPass> reads) {
  costs.reads = std::move(reads);
  return costs;
}

PlanCosts estimate_costs(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec, int threads,
                         std::uint64_t bytes_copied) {
  PlanCosts costs;
  costs.bytes_copied = bytes_copied;
  estimate_memory(plan, checkpoint, spec, threads, costs);
  costs.flops = estimate_flops(plan, spec);
  costs.bytes_in = checkpoint.tensor_bytes();
  costs.reads = read_passes(plan, checkpoint, spec);
  std::uint64_t weights = 0;
  const std::vector<PlannedModule> packed = plan.packed();
  for (const PlannedModule& m : packed) weights += static_cast<std::uint64_t>(m.out_features * m.in_features);
  costs.bytes_out = dense_bytes(checkpoint, packed) +
                    static_cast<std::uint64_t>(stored_bits_per_weight(plan.format, packed) *
                                               static_cast<double>(weights) / 8);
  return costs;
}

}  // namespace llmq
