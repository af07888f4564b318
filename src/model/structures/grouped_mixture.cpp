#include "model/structures/grouped_mixture.h"

#include <fmt/format.h>

#include <cstdlib>
#include <utility>

namespace llmq {
namespace {

constexpr IntegerRange kGroupsRange{1, 1 << 12}, kFurtherRange{0, 64}, kSharedRange{0, 64};
constexpr NumberRange kWeightScaleRange{1e-6, 1e6};

}  // namespace

std::vector<bool> read_blocks_behind_dense(ConfigFields& config, const ModelSpec& spec, std::int64_t absent) {
  const std::int64_t dense = config.integer("first_k_dense_replace", {0, kLayersRange.most}, absent);
  std::vector<bool> sparse;
  for (std::size_t i = 0; i < spec.blocks.size(); ++i)
    sparse.push_back(static_cast<std::int64_t>(i) >= dense);
  return sparse;
}

void read_groups(ConfigFields& config, int groups, int kept_groups, LlamaMixture& mixture) {
  constexpr const char *kGroups = "n_group", *kKept = "topk_group";
  mixture.groups = static_cast<int>(config.integer(kGroups, kGroupsRange, groups));
  mixture.kept_groups = static_cast<int>(config.integer(kKept, kGroupsRange, kept_groups));
  const std::int64_t each = mixture.experts / mixture.groups;
  if (mixture.experts % mixture.groups != 0 || (mixture.groups > 1 && each < mixture.group_best))
    config.bad(kGroups,
               fmt::format("is {}, and groups of {} experts have equally many, {} at least", mixture.groups,
                           mixture.experts, mixture.group_best == 2 ? "two" : "one"));
  if (mixture.kept_groups > mixture.groups)
    config.bad(kKept, fmt::format("is {}, and there are {} groups", mixture.kept_groups, mixture.groups));
  if (mixture.top_k > each * mixture.kept_groups)
    config.bad(kKept,
               fmt::format("leaves {} experts, and a row has {}", each * mixture.kept_groups, mixture.top_k));
}

LlamaMixture read_grouped_mixture(ConfigFields& config, std::int64_t tensors, std::vector<bool> blocks,
                                  const GroupedDefaults& defaults) {
  LlamaMixture mixture;
  mixture.names.shared = "mlp.shared_experts";
  mixture.names.shared_gate = nullptr;
  mixture.blocks = std::move(blocks);
  read_experts(config, tensors, defaults.experts, defaults.top_k, mixture);
  mixture.width = config.integer("moe_intermediate_size", kWidthRange, defaults.width);
  mixture.shared_width = mixture.width * config.integer("n_shared_experts", kSharedRange, defaults.shared);
  mixture.weight_scale = config.number("routed_scaling_factor", kWeightScaleRange, defaults.weight_scale);
  return mixture;
}

LlamaMixture read_sigmoid_mixture(ConfigFields& config, std::int64_t tensors, std::vector<bool> blocks,
                                  const GroupedDefaults& defaults) {
  LlamaMixture mixture = read_grouped_mixture(config, tensors, std::move(blocks), defaults);
  mixture.names.correction = "mlp.gate.e_score_correction_bias";
  mixture.score = RouterScore::kSigmoid;
  mixture.normalized = config.flag("norm_topk_prob", true);
  read_groups(config, defaults.groups, defaults.kept_groups, mixture);
  return mixture;
}

void carry_further_blocks(ConfigFields& config, std::int64_t absent, ModelSpec& spec) {
  const char* const key =
      config.find("num_mtp_layers") != nullptr ? "num_mtp_layers" : "num_nextn_predict_layers";
  const std::int64_t further = config.integer(key, kFurtherRange, absent);
  config.find("num_nextn_predict_layers");
  for (std::int64_t i = 0; i < further; ++i)
    spec.carried.parts.push_back(
        fmt::format("model.layers.{}", static_cast<std::int64_t>(spec.blocks.size()) + i));
}

std::optional<SlabNames> find_stacked_experts_of_blocks(const Json& config, const std::string& tensor) {
  const Json* const layers = config.find("num_hidden_layers");
  if (layers == nullptr || !layers->is_integer()) return std::nullopt;
  const std::string blocks = "model.layers.";
  if (tensor.starts_with(blocks) && std::atoll(tensor.c_str() + blocks.size()) >= layers->as_integer())
    return std::nullopt;
  return find_stacked_experts(config, tensor);
}

}  // namespace llmq
