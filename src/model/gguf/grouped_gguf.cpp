// Mixtures in groups behind blocks with an MLP, as llama.cpp has them, and attention over latents. Of
// kv_b_proj, [plain | value] rows of each head, it makes two stacks of a matrix a head: attn_k_b, the plain
// rows turned, and attn_v_b. The architecture deepseek2 is that of four families: by sigmoids it is
// DeepSeek-V3's mathematics, as which it is read. Sources: llama.cpp's conversion/glm.py and deepseek.py,
// src/models/glm4-moe.cpp and deepseek2.cpp.
#include "model/gguf/grouped_gguf.h"

#include <fmt/format.h>

#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

constexpr std::array<GgufName, 11> kGroupedNames{
    {{"ffn_gate", "mlp.gate_proj"},
     {"ffn_up", "mlp.up_proj"},
     {"ffn_down", "mlp.down_proj"},
     {"ffn_gate_inp", "mlp.gate"},
     {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias", {}, true},
     {"ffn_gate_exps", "mlp.experts.*.gate_proj"},
     {"ffn_up_exps", "mlp.experts.*.up_proj"},
     {"ffn_down_exps", "mlp.experts.*.down_proj"},
     {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
     {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
     {"ffn_down_shexp", "mlp.shared_experts.down_proj"}}};
constexpr std::array<GgufName, 6> kNextNames{{{"nextn.eh_proj", "eh_proj"},
                                              {"nextn.enorm", "enorm"},
                                              {"nextn.hnorm", "hnorm"},
                                              {"nextn.embed_tokens", "embed_tokens"},
                                              {"nextn.shared_head_head", "shared_head.head"},
                                              {"nextn.shared_head_norm", "shared_head.norm"}}};
constexpr auto kGlmBlockNames =
    joined(kAttentionNames, kHeadNormNames,
           std::array<GgufName, 1>{{{"post_attention_norm", "post_attention_layernorm"}}}, kGroupedNames);
constexpr auto kLatentBlockNames =
    joined(std::array<GgufName, 11>{{{"attn_norm", "input_layernorm"},
                                     {"attn_q", "self_attn.q_proj"},
                                     {"attn_q_a", "self_attn.q_a_proj"},
                                     {"attn_q_a_norm", "self_attn.q_a_layernorm"},
                                     {"attn_q_b", "self_attn.q_b_proj"},
                                     {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
                                     {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
                                     {"attn_k_b", "self_attn.kv_b_proj"},
                                     {"attn_v_b", "self_attn.kv_b_proj"},
                                     {"attn_output", "self_attn.o_proj"},
                                     {"ffn_norm", "post_attention_layernorm"}}},
           kGroupedNames);

constexpr std::array<GgufKey, 5> kSizeKeys{GgufKey::kBlockCount, GgufKey::kContextLength,
                                           GgufKey::kEmbeddingLength, GgufKey::kFeedForwardLength,
                                           GgufKey::kHeadCount};
constexpr std::array<GgufKey, 7> kMixtureKeys{
    GgufKey::kRopeScaling,     GgufKey::kFrequencyBase, GgufKey::kNormEpsilon,     GgufKey::kExpertCount,
    GgufKey::kExpertUsedCount, GgufKey::kExpertGroups,  GgufKey::kExpertGroupsUsed};
constexpr auto kGlmKeys =
    joined(kSizeKeys, std::array<GgufKey, 1>{GgufKey::kKvHeadCount}, kMixtureKeys,
           std::array<GgufKey, 10>{GgufKey::kStatedKeyLength, GgufKey::kFileType, GgufKey::kTurningDimensions,
                                   GgufKey::kExpertWidth, GgufKey::kSharedExpertCount, GgufKey::kDenseBlocks,
                                   GgufKey::kGatingFunction, GgufKey::kExpertScale,
                                   GgufKey::kExpertsNormalizedOrNot, GgufKey::kFurtherBlocks});
constexpr auto kLatentKeys =
    joined(kSizeKeys, std::array<GgufKey, 1>{GgufKey::kOneKvHead}, kMixtureKeys,
           std::array<GgufKey, 15>{GgufKey::kStatedGatingFunction, GgufKey::kStatedKeyLength,
                                   GgufKey::kFileType, GgufKey::kDenseBlocks, GgufKey::kVocabularySize,
                                   GgufKey::kQueryRank, GgufKey::kLatentRank, GgufKey::kLatentLengths,
                                   GgufKey::kExpertWidth, GgufKey::kSharedExpertCount, GgufKey::kExpertScale,
                                   GgufKey::kExpertsNormalized, GgufKey::kTurningDimensions,
                                   GgufKey::kYarnLogMultiplier, GgufKey::kFurtherBlocks});

// What GLM's vocabularies say where tokenizer_config.json does not: bos, and which tokens end a turn.
constexpr std::array<std::pair<const char*, const char*>, 4> kGlmTokens{
    {{"bos", "[gMASK]"}, {"eot", "<|user|>"}, {"unknown", "<|endoftext|>"}, {"eom", "<|observation|>"}}};

std::optional<GgufPart> part_of_latents(std::string_view name, const GgufWidths& widths) {
  const std::int64_t each = widths.plain + widths.latent_value_dim;
  GgufPart part{{widths.heads * each, widths.rank}, {}, {}, {}};
  if (name == "attn_k_b.weight") {
    part.shape = {widths.heads, widths.rank, widths.plain};
    part.rows.runs = {{0, {1, widths.heads, widths.plain}, {0, each, 1}}};
    part.turned = true;
    return part;
  }
  if (name != "attn_v_b.weight") return std::nullopt;
  part.shape = {widths.heads, widths.latent_value_dim, widths.rank};
  part.rows.runs = {{widths.plain, {1, widths.heads, widths.latent_value_dim}, {0, each, 1}}};
  return part;
}

// What both have; a key that may be missing is one that llama.cpp has a default for.
void add_groups(const GgufHeader& header, Json& config) {
  const std::string prefix = std::string(header.string("general.architecture")) + ".";
  const auto take = [&](const char* key, const char* name) {
    if (header.find(prefix + key) != nullptr) config[name] = gguf_size(header, prefix + key);
  };
  add_gguf_experts(header, "n_routed_experts", config);
  config["moe_intermediate_size"] = gguf_size(header, prefix + "expert_feed_forward_length");
  config["n_shared_experts"] = gguf_size(header, prefix + "expert_shared_count");
  config["n_group"] = 1, config["topk_group"] = 1;
  take("expert_group_count", "n_group"), take("expert_group_used_count", "topk_group");
  config["first_k_dense_replace"] = header.find_integer(prefix + "leading_dense_block_count").value_or(0);
  const double scale = header.find_number(prefix + "expert_weights_scale").value_or(1.0);
  config["routed_scaling_factor"] = scale == 0 ? 1.0 : scale;
  config["norm_topk_prob"] = header.find_boolean(prefix + "expert_weights_norm").value_or(false);
  config["num_nextn_predict_layers"] = header.find_integer(prefix + "nextn_predict_layers").value_or(0);
}

void add_glm4_moe_gguf(const GgufHeader& header, Json& config) {
  add_groups(header, config);
  config["use_qk_norm"] = find_gguf_tensor(header, "blk.0.attn_q_norm.weight") != nullptr;
  config["attention_bias"] = has_gguf_biases(header, {"attn_q", "attn_k", "attn_v"});
  if (config.find("partial_rotary_factor") == nullptr) config["partial_rotary_factor"] = 1.0;
}

void add_latents(const GgufHeader& header, Json& config) {
  const std::string prefix = "deepseek2.attention.";
  const std::int64_t turning = config.at("head_dim").as_integer();
  add_groups(header, config);
  config["q_lora_rank"] = header.find(prefix + "q_lora_rank") == nullptr
                              ? Json()
                              : Json(gguf_size(header, prefix + "q_lora_rank"));
  config["kv_lora_rank"] = gguf_size(header, prefix + "kv_lora_rank");
  config["qk_rope_head_dim"] = turning;
  config["qk_nope_head_dim"] = gguf_size(header, prefix + "key_length_mla") - turning;
  config["v_head_dim"] = gguf_size(header, prefix + "value_length_mla");
  config["attention_bias"] = false;
}

void add_deepseek_v2_gguf(const GgufHeader& header, Json& config) {
  add_latents(header, config);
  config["scoring_func"] = "softmax";
  config["topk_method"] = config.at("n_group").as_integer() > 1 ? "group_limited_greedy" : "greedy";
}

void add_deepseek_v3_gguf(const GgufHeader& header, Json& config) {
  add_latents(header, config);
  config["scoring_func"] = "sigmoid", config["topk_method"] = "noaux_tc", config["rope_interleave"] = true;
}

constexpr GgufFamily latent_family(RouterScore score, bool further_are_read_only,
                                   void (*add_config)(const GgufHeader&, Json&)) {
  GgufFamily family{.architecture = "deepseek2",
                    .names = {"model.layers", kLlamaModelNames, kLatentBlockNames, kNextNames},
                    .keys = kLatentKeys};
  family.names.further_are_read_only = further_are_read_only;
  family.part = part_of_latents;
  family.experts = GgufExperts::kAsTold;
  family.score = score;
  family.add_config = add_config;
  return family;
}

constexpr GgufFamily glm_lite_family() {
  GgufFamily family = latent_family(RouterScore::kSigmoid, false, add_deepseek_v3_gguf);
  family.vocabulary.special = kGlmTokens;
  return family;
}

}  // namespace

const GgufFamily kGlm4MoeGguf = {.architecture = "glm4moe",
                                 .names = {"model.layers", kLlamaModelNames, kGlmBlockNames, kNextNames},
                                 .keys = kGlmKeys,
                                 .partial_rope = true,
                                 .experts = GgufExperts::kAsTold,
                                 .score = RouterScore::kSigmoid,
                                 .vocabulary = {.special = kGlmTokens},
                                 .add_config = add_glm4_moe_gguf};
const GgufFamily kDeepseekV2Gguf = latent_family(RouterScore::kSoftmax, true, add_deepseek_v2_gguf);
const GgufFamily kDeepseekV3Gguf = latent_family(RouterScore::kSigmoid, true, add_deepseek_v3_gguf);
const GgufFamily kGlm4MoeLiteGguf = glm_lite_family();

}  // namespace llmq
