// DeepSeek V2 and V3, Kimi-K2 and GLM-4.7-Flash: Llama with attention over latents
// (model/structures/llama_latent.h) and, behind the first blocks, a mixture of experts in groups
// (model/structures/grouped_mixture.h). V2 chooses by softmax, the others by sigmoids with a correction.
// Source: configuration_ and modeling_deepseek_v2, _deepseek_v3 and _glm4_moe_lite of Transformers; Kimi-K2
// is V3 with other sizes, under a name that Transformers does not know.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "model/gguf/grouped_gguf.h"
#include "model/structures/grouped_mixture.h"
#include "model/structures/llama_like.h"

namespace llmq {
namespace {

struct LatentSizes {
  LlamaSizes sizes;
  LlamaTraits traits;
};

// Everything but the mixture.
LatentSizes read_latent_decoder(ConfigFields& config, std::int64_t tensors, const LatentDefaults& latents,
                                LlamaDefaults defaults, ModelSpec& spec) {
  LatentSizes read;
  LlamaLatent latent = read_latent_widths(config, latents);
  defaults.head_dim = latent.turning;
  read.sizes = read_llama_sizes(config, tensors, defaults, spec);
  config.require_neutral("partial_rotary_factor", 1);
  spec.ropes = {read_rope(config, spec.max_position, latent.turning)};
  read_latent_attention(config, read.sizes.heads, read.sizes.kv_heads, spec.ropes.front(), latent);
  config.require_neutral("mlp_bias", false);
  config.require_neutral("moe_layer_freq", 1);
  for (const char* training : {"aux_loss_alpha", "seq_aux", "ep_size"}) config.find(training);
  read.traits.latent = latent;
  return read;
}

RopePairs read_pairs(ConfigFields& config) {
  return config.flag("rope_interleave", true) ? RopePairs::kNeighbours : RopePairs::kHalves;
}

// Scores are not corrected; a group counts by its best. Transformers passes over norm_topk_prob, and others
// do not.
LlamaMixture read_softmax_mixture(ConfigFields& config, std::int64_t tensors, const ModelSpec& spec) {
  constexpr const char* kMethod = "topk_method";
  LlamaMixture mixture = read_grouped_mixture(config, tensors, read_blocks_behind_dense(config, spec, 0),
                                              {.experts = 64, .width = 1407, .shared = 2, .top_k = 1});
  if (config.find("num_experts_per_tok") == nullptr)
    config.bad("num_experts_per_tok", "is missing", "this family has no default for it");
  mixture.group_best = 1;
  config.require_neutral("norm_topk_prob", false);
  config.require_neutral("scoring_func", "softmax");
  const std::string method = config.text(kMethod, "greedy");
  if (method == "group_limited_greedy") {
    read_groups(config, 1, 1, mixture);
  } else if (method == "greedy") {
    config.find("n_group"), config.find("topk_group");
  } else {
    config.unsupported(kMethod, fmt::format("is \"{}\", which is not known here", method),
                       "greedy and group_limited_greedy are");
  }
  return mixture;
}

void read_deepseek_v2(ConfigFields& config, std::int64_t tensors, ModelSpec& spec) {
  LatentSizes read =
      read_latent_decoder(config, tensors, {1536, 512, 128, 64, 128}, {2048, 0, 0, 1e-6}, spec);
  read.traits.mixture = read_softmax_mixture(config, tensors, spec);
  carry_further_blocks(config, 0, spec);
  fill_llama(read.sizes, read.traits, spec);
}

void require_sigmoids(ConfigFields& config) {
  config.require_neutral("scoring_func", "sigmoid");
  config.require_neutral("topk_method", "noaux_tc");
}

void read_deepseek_v3(ConfigFields& config, std::int64_t tensors, ModelSpec& spec) {
  LatentSizes read =
      read_latent_decoder(config, tensors, {1536, 512, 128, 64, 128}, {4096, 0, 0, 1e-6}, spec);
  read.traits.latent->pairs = read_pairs(config);
  require_sigmoids(config);
  read.traits.mixture = read_sigmoid_mixture(config, tensors, read_blocks_behind_dense(config, spec, 3),
                                             {.experts = 256,
                                              .width = 2048,
                                              .shared = 1,
                                              .top_k = 8,
                                              .groups = 8,
                                              .kept_groups = 4,
                                              .weight_scale = 2.5});
  carry_further_blocks(config, 1, spec);
  fill_llama(read.sizes, read.traits, spec);
}

// mlp_layer_types of Transformers 5, or first_k_dense_replace as it was published.
std::vector<bool> read_mlp_types(ConfigFields& config, const ModelSpec& spec) {
  constexpr const char* kTypes = "mlp_layer_types";
  const Json* const types = config.find(kTypes);
  const bool counted = config.find("first_k_dense_replace") != nullptr;
  std::vector<bool> sparse = read_blocks_behind_dense(config, spec, 1);
  if (types == nullptr) return sparse;
  if (!types->is_array() || types->items().size() != spec.blocks.size())
    config.bad(kTypes, fmt::format("is no list of {} kinds", spec.blocks.size()), "one for each block");
  for (std::size_t i = 0; i < sparse.size(); ++i) {
    const Json& type = types->items()[i];
    const bool own = type == Json("sparse");
    if (!own && !(type == Json("dense")))
      config.unsupported(kTypes, fmt::format("holds {}, which is not known here", type.dump()),
                         "dense and sparse are");
    if (counted && own != sparse[i])
      config.bad(kTypes, fmt::format("differs from first_k_dense_replace in block {}", i),
                 "remove one of them");
    sparse[i] = own;
  }
  return sparse;
}

void read_glm4_moe_lite(ConfigFields& config, std::int64_t tensors, ModelSpec& spec) {
  LatentSizes read =
      read_latent_decoder(config, tensors, {768, 512, 192, 64, 256}, {202752, 0, 0, 1e-5}, spec);
  read.traits.latent->pairs = read_pairs(config);
  require_sigmoids(config);
  read.traits.mixture =
      read_sigmoid_mixture(config, tensors, read_mlp_types(config, spec),
                           {.experts = 64, .width = 1536, .shared = 1, .top_k = 4, .weight_scale = 1.8});
  carry_further_blocks(config, 1, spec);
  fill_llama(read.sizes, read.traits, spec);
}

}  // namespace

extern const Family kDeepseekV2Family = {
    "deepseek_v2",    "DeepseekV2ForCausalLM", false,
    read_deepseek_v2, &kDeepseekV2Gguf,        find_stacked_experts_of_blocks};
extern const Family kDeepseekV3Family = {
    "deepseek_v3",    "DeepseekV3ForCausalLM", false,
    read_deepseek_v3, &kDeepseekV3Gguf,        find_stacked_experts_of_blocks};
extern const Family kKimiK2Family = {"kimi_k2",        "DeepseekV3ForCausalLM",       false, read_deepseek_v3,
                                     &kDeepseekV3Gguf, find_stacked_experts_of_blocks};
extern const Family kGlm4MoeLiteFamily = {
    "glm4_moe_lite",    "Glm4MoeLiteForCausalLM", false,
    read_glm4_moe_lite, &kGlm4MoeLiteGguf,        find_stacked_experts_of_blocks};

}  // namespace llmq
