#include "model/structures/llama_latent.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace llmq {
namespace {

constexpr IntegerRange kLatentRange{1, 1 << 16};
constexpr int kMostHeads = 1 << 12;  // each is two parts of a linear in every block

// Transformers' modeling_deepseek_v3, yarn_get_mscale: of a kind that stretches, and says by how much.
double score_growth(const RopeSpec& rope) {
  if (rope.kind != RopeKind::kYarn || rope.mscale_all_dim == 0 || rope.factor <= 1) return 1;
  const double of_each = 0.1 * rope.mscale_all_dim * std::log(rope.factor) + 1;
  return of_each * of_each;
}

// The classes' own default: rms_norm_eps is that of the norms of the residual stream alone.
NormSpec latent_norm() {
  NormSpec norm;
  norm.eps = 1e-6f;
  return norm;
}

}  // namespace

LlamaLatent read_latent_widths(ConfigFields& config, const LatentDefaults& defaults) {
  LlamaLatent latent;
  if (!config.is_null("q_lora_rank"))
    latent.query_rank = config.integer("q_lora_rank", kLatentRange, defaults.query_rank);
  latent.rank = config.integer("kv_lora_rank", kLatentRange, defaults.rank);
  latent.plain = config.integer("qk_nope_head_dim", kLatentRange, defaults.plain);
  latent.turning = config.integer("qk_rope_head_dim", kLatentRange, defaults.turning);
  latent.value_dim = config.integer("v_head_dim", kLatentRange, defaults.value_dim);
  if (latent.turning % 2 != 0)
    config.bad("qk_rope_head_dim",
               fmt::format("is {}; rope turns pairs and needs an even one", latent.turning));
  config.require_neutral("qk_head_dim", latent.plain + latent.turning);
  config.require_neutral("head_dim", latent.turning);
  return latent;
}

void read_latent_attention(ConfigFields& config, int heads, int kv_heads, const RopeSpec& rope,
                           LlamaLatent& latent) {
  if (kv_heads != heads)
    config.bad("num_key_value_heads",
               fmt::format("is {}, and each of the {} heads has keys of its own", kv_heads, heads));
  if (heads > kMostHeads)
    config.bad("num_attention_heads",
               fmt::format("is {}, and {} are the most over latents", heads, kMostHeads));
  const std::int64_t widest = std::max(
      latent.rank + latent.turning, std::max(latent.plain + latent.turning, latent.plain + latent.value_dim));
  if (widest * heads > kWidthRange.most)
    config.bad("num_attention_heads",
               fmt::format("{} heads of {} are more than {} channels", heads, widest, kWidthRange.most));
  latent.heads = heads;
  latent.bias = config.flag("attention_bias", false);
  latent.scale =
      static_cast<float>(score_growth(rope) / std::sqrt(static_cast<double>(latent.plain + latent.turning)));
}

LatentAttentionSpec latent_attention_of(const LlamaLatent& latent, BlockBuilder& builder,
                                        std::int64_t hidden) {
  LatentAttentionSpec spec;
  spec.heads = latent.heads, spec.rank = latent.rank, spec.plain = latent.plain,
  spec.value_dim = latent.value_dim;
  spec.query_rank = latent.query_rank, spec.scale = latent.scale;
  spec.rope = {0, latent.turning, latent.pairs};
  const std::int64_t queries = latent.heads * spec.query_dim();
  spec.input = builder.site("x_attn", hidden);
  if (latent.query_rank > 0) {
    spec.queries = builder.site("x_q", latent.query_rank);
    spec.narrow = builder.linear("self_attn.q_a_proj", spec.input, {latent.query_rank}, latent.bias);
    spec.query_norm = builder.norm("self_attn.q_a_layernorm", latent_norm(), latent.query_rank);
  }
  spec.joint = builder.linear("self_attn.kv_a_proj_with_mqa", spec.input, {spec.row_dim()}, latent.bias);
  spec.latent_norm = builder.norm("self_attn.kv_a_layernorm", latent_norm(), latent.rank);
  spec.latent = builder.site("x_kv", latent.rank);
  spec.inner = builder.site("x_o", spec.inner_width());
  spec.query = latent.query_rank > 0 ? builder.linear("self_attn.q_b_proj", *spec.queries, {queries}, false)
                                     : builder.linear("self_attn.q_proj", spec.input, {queries}, false);
  spec.expand =
      builder.absorbed("self_attn.kv_b_proj", spec.latent, latent.heads, latent.plain, latent.value_dim);
  spec.output = builder.linear("self_attn.o_proj", spec.inner, {hidden}, latent.bias);
  return spec;
}

}  // namespace llmq
