// GLM-4.5 and GLM-4.6: Llama, of whose heads a half turns, with a mixture of experts from some block on. A
// router gives sigmoids; a correction is added to choose experts by, among groups of them, and what weighs
// them is without it. One expert of all rows counts as it is. Source: Transformers' configuration_glm4_moe
// and modeling_glm4_moe.
//
// The blocks behind the last, which predict further tokens, are no part of what is computed: they are carried
// along.
#include <fmt/format.h>

#include "model/structures/llama_like.h"

namespace llmq {
namespace {

constexpr IntegerRange kGroupsRange{1, 1 << 12}, kFurtherRange{0, 64}, kSharedRange{0, 64};
constexpr NumberRange kWeightScaleRange{1e-6, 1e6};

// Blocks behind the first so many.
std::vector<bool> blocks_behind_dense(ConfigFields& config, const ModelSpec& spec) {
  const std::int64_t dense = config.integer("first_k_dense_replace", {0, kLayersRange.most}, 1);
  std::vector<bool> sparse;
  for (std::size_t i = 0; i < spec.blocks.size(); ++i)
    sparse.push_back(static_cast<std::int64_t>(i) >= dense);
  return sparse;
}

void read_groups(ConfigFields& config, LlamaMixture& mixture) {
  constexpr const char *kGroups = "n_group", *kKept = "topk_group";
  mixture.groups = static_cast<int>(config.integer(kGroups, kGroupsRange, 1));
  mixture.kept_groups = static_cast<int>(config.integer(kKept, kGroupsRange, 1));
  const std::int64_t each = mixture.experts / mixture.groups;
  if (mixture.experts % mixture.groups != 0 || (mixture.groups > 1 && each < 2))
    config.bad(kGroups, fmt::format("is {}, and groups of {} experts have equally many, two at least",
                                    mixture.groups, mixture.experts));
  if (mixture.kept_groups > mixture.groups)
    config.bad(kKept, fmt::format("is {}, and there are {} groups", mixture.kept_groups, mixture.groups));
  if (mixture.top_k > each * mixture.kept_groups)
    config.bad(kKept,
               fmt::format("leaves {} experts, and a row has {}", each * mixture.kept_groups, mixture.top_k));
}

LlamaMixture read_glm_mixture(ConfigFields& config, std::int64_t tensors, const ModelSpec& spec) {
  LlamaMixture mixture;
  mixture.names.shared = "mlp.shared_experts";
  mixture.names.shared_gate = nullptr;
  mixture.names.correction = "mlp.gate.e_score_correction_bias";
  mixture.blocks = blocks_behind_dense(config, spec);
  read_experts(config, tensors, 128, 8, mixture);
  mixture.width = config.integer("moe_intermediate_size", kWidthRange, 1408);
  mixture.shared_width = mixture.width * config.integer("n_shared_experts", kSharedRange, 1);
  mixture.score = RouterScore::kSigmoid;
  mixture.normalized = config.flag("norm_topk_prob", true);
  mixture.weight_scale = config.number("routed_scaling_factor", kWeightScaleRange, 1);
  read_groups(config, mixture);
  return mixture;
}

// Transformers 5.23 has a second name for their number.
void carry_further_blocks(ConfigFields& config, ModelSpec& spec) {
  const char* const key =
      config.find("num_mtp_layers") != nullptr ? "num_mtp_layers" : "num_nextn_predict_layers";
  const std::int64_t further = config.integer(key, kFurtherRange, 1);
  config.find("num_nextn_predict_layers");
  for (std::int64_t i = 0; i < further; ++i)
    spec.carried.parts.push_back(
        fmt::format("model.layers.{}", static_cast<std::int64_t>(spec.blocks.size()) + i));
}

void read_glm4_moe(ConfigFields& config, std::int64_t tensors, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, tensors, {131072, 8, 0, 1e-5}, spec);
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim, {.partial = true, .share = 0.5})};
  LlamaTraits traits;
  traits.qkv_bias = config.flag("attention_bias", false);
  traits.query_key_norm = config.flag("use_qk_norm", false);
  config.require_neutral("mlp_bias", false);
  traits.mixture = read_glm_mixture(config, tensors, spec);
  carry_further_blocks(config, spec);
  fill_llama(sizes, traits, spec);
}

// Of the model's blocks: those behind them keep their bytes, however they are stacked.
std::optional<SlabNames> find_glm_experts(const Json& config, const std::string& tensor) {
  const Json* const layers = config.find("num_hidden_layers");
  if (layers == nullptr || !layers->is_integer()) return std::nullopt;
  const std::string blocks = "model.layers.";
  if (tensor.starts_with(blocks) && std::atoll(tensor.c_str() + blocks.size()) >= layers->as_integer())
    return std::nullopt;
  return find_stacked_experts(config, tensor);
}

}  // namespace

extern const Family kGlm4MoeFamily = {"glm4_moe", "Glm4MoeForCausalLM", false, read_glm4_moe,
                                      nullptr,    find_glm_experts};

}  // namespace llmq
