#include "model/structures/llama_like.h"

#include <fmt/format.h>

#include "model/block_builder.h"

namespace llmq {
namespace {

Activation read_activation(ConfigFields& config, const char* absent) {
  const std::string name = config.text("hidden_act", absent);
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::kGeluTanh;
  config.unsupported("hidden_act", fmt::format("the activation \"{}\" is not known here", name),
                     "silu, gelu_pytorch_tanh and gelu_new are");
}

void read_heads(ConfigFields& config, const LlamaDefaults& defaults, const ModelSpec& spec,
                LlamaSizes& sizes) {
  sizes.heads = static_cast<int>(config.integer("num_attention_heads", kHeadsRange));
  const std::int64_t kv_default =
      config.is_null("num_key_value_heads") || defaults.kv_heads == 0 ? sizes.heads : defaults.kv_heads;
  sizes.kv_heads = static_cast<int>(config.integer("num_key_value_heads", kHeadsRange, kv_default));
  if (sizes.kv_heads > sizes.heads || sizes.heads % sizes.kv_heads != 0)
    config.bad("num_key_value_heads", fmt::format("is {}, which does not divide num_attention_heads {}",
                                                  sizes.kv_heads, sizes.heads));
  std::int64_t head_dim = defaults.head_dim;
  if (config.find("head_dim") != nullptr) {
    head_dim = config.integer("head_dim", kHeadDimRange);
  } else if (head_dim == 0) {
    if (spec.hidden_size % sizes.heads != 0)
      config.bad("num_attention_heads",
                 fmt::format("is {}, which does not divide hidden_size {}", sizes.heads, spec.hidden_size),
                 "give head_dim");
    head_dim = spec.hidden_size / sizes.heads;
  }
  if (head_dim % 2 != 0)
    config.bad("head_dim", fmt::format("is {}; rope turns pairs and needs an even one", head_dim));
  sizes.head_dim = static_cast<int>(head_dim);
  if (sizes.heads * head_dim > kWidthRange.most)
    config.bad("num_attention_heads", fmt::format("{} heads of {} are more than {} channels", sizes.heads,
                                                  head_dim, kWidthRange.most));
}

struct HalfOfABlock {
  BlockBuilder& builder;
  const LlamaSizes& sizes;
  const LlamaTraits& traits;
  std::int64_t hidden;
  NormSpec norm;
};

AttentionSpec attention_of(const HalfOfABlock& half, std::int64_t window, const RopeUse& rope) {
  BlockBuilder& builder = half.builder;
  const LlamaSizes& sizes = half.sizes;
  const bool bias = half.traits.qkv_bias;
  const std::int64_t queries = std::int64_t{sizes.heads} * sizes.head_dim,
                     keys = std::int64_t{sizes.kv_heads} * sizes.head_dim;
  AttentionSpec attention;
  attention.heads = sizes.heads, attention.kv_heads = sizes.kv_heads, attention.head_dim = sizes.head_dim;
  attention.window = window, attention.chunks = half.traits.chunks && window != 0, attention.rope = rope,
  attention.scale = half.traits.attention_scale;
  attention.query_table = half.traits.query_table;
  attention.softcap = half.traits.attention_softcap;
  if (half.traits.sinks) attention.sinks = builder.tensor_of_heads("self_attn.sinks", sizes.heads);
  attention.input = builder.site("x_attn", half.hidden), attention.inner = builder.site("x_o", queries);
  if (half.traits.fused_qkv) {
    const LinearId qkv = builder.linear("self_attn.qkv_proj", attention.input, {queries, keys, keys}, bias);
    attention.query = {qkv, 0}, attention.key = {qkv, 1}, attention.value = {qkv, 2};
  } else {
    attention.gated = half.traits.gated_attention;
    attention.query = {builder.linear("self_attn.q_proj", attention.input, {attention.query_rows()}, bias)};
    attention.key = {builder.linear("self_attn.k_proj", attention.input, {keys}, bias)};
    attention.value = {builder.linear("self_attn.v_proj", attention.input, {keys}, bias)};
    builder.turned_by_rope(attention.query.linear, sizes.heads);
    builder.turned_by_rope(attention.key.linear, sizes.kv_heads);
  }
  attention.output = builder.linear("self_attn.o_proj", attention.inner, {half.hidden}, half.traits.o_bias);
  if (half.traits.query_key_norm) {
    attention.query_norm = builder.norm("self_attn.q_norm", half.norm, sizes.head_dim);
    attention.key_norm = builder.norm("self_attn.k_norm", half.norm, sizes.head_dim);
  } else if (half.traits.query_key_lengths && rope.of_keys) {
    attention.query_norm = builder.norm_of({}, half.norm, sizes.head_dim);
    attention.key_norm = builder.norm_of({}, half.norm, sizes.head_dim);
  } else if (half.traits.query_key_norm_over_all) {
    attention.query_norm = builder.norm("self_attn.q_norm", half.norm, queries);
    attention.key_norm = builder.norm("self_attn.k_norm", half.norm, keys);
  }
  return attention;
}

MlpSpec mlp_of(const HalfOfABlock& half) {
  BlockBuilder& builder = half.builder;
  const std::int64_t width = half.sizes.intermediate_size;
  const bool bias = half.traits.mlp_bias;
  const std::string at = half.traits.mlp;
  MlpSpec mlp;
  mlp.width = width, mlp.activation = half.sizes.activation;
  mlp.input = builder.site("x_mlp", half.hidden), mlp.inner = builder.site("x_down", width);
  if (half.traits.fused_gate_up) {
    const LinearId both = builder.linear(at + ".gate_up_proj", mlp.input, {width, width}, bias);
    mlp.gate = Part{both, 0}, mlp.up = {both, 1};
  } else {
    mlp.gate = Part{builder.linear(at + ".gate_proj", mlp.input, {width}, bias)};
    mlp.up = {builder.linear(at + ".up_proj", mlp.input, {width}, bias)};
  }
  mlp.output = builder.linear(at + ".down_proj", mlp.inner, {half.hidden}, bias);
  return mlp;
}

}  // namespace

LlamaSizes read_llama_sizes(ConfigFields& config, std::int64_t layers, const LlamaDefaults& defaults,
                            ModelSpec& spec, const char* activation) {
  LlamaSizes sizes;
  read_common_sizes(config, layers, spec);
  sizes.intermediate_size = defaults.intermediate_size == 0 ? config.integer("intermediate_size", kWidthRange)
                                                            : config.integer("intermediate_size", kWidthRange,
                                                                             defaults.intermediate_size);
  spec.max_position = config.integer("max_position_embeddings", kPositionsRange, defaults.max_position);
  read_heads(config, defaults, spec, sizes);
  sizes.eps = static_cast<float>(config.number("rms_norm_eps", {0, 1}, defaults.eps));
  sizes.activation = read_activation(config, activation);
  return sizes;
}

void fill_llama(const LlamaSizes& sizes, const LlamaTraits& traits, ModelSpec& spec) {
  NormSpec norm;
  norm.eps = sizes.eps, norm.offset = traits.norm_offset;
  spec.embedding.tensor = "model.embed_tokens.weight";
  spec.embedding.scale = traits.embedding_scale;
  spec.final_norm = norm;
  spec.final_norm.scale = traits.logit_scale;
  spec.final_norm.gain = {"model.norm.weight"};
  spec.final_norm.width = spec.hidden_size;
  for (std::size_t i = 0; i < spec.blocks.size(); ++i) {
    BlockBuilder builder(fmt::format("model.layers.{}", i));
    const HalfOfABlock half{builder, sizes, traits, spec.hidden_size, norm};
    const auto norm_named = [&](const char* name) {
      return name == nullptr ? std::nullopt : std::optional(builder.norm(name, norm, spec.hidden_size));
    };
    const LlamaNorms& names = traits.norms;
    const auto before_attention = norm_named(names.before_attention),
               behind_attention = norm_named(names.behind_attention),
               before_mlp = norm_named(names.before_mlp), behind_mlp = norm_named(names.behind_mlp);
    const RopeUse rope = traits.turns.empty() ? RopeUse{0, spec.ropes.front().dims} : traits.turns[i];
    const std::int64_t window = traits.windows.empty() ? 0 : traits.windows[i];
    if (traits.delta && traits.delta->blocks[i])
      builder.delta(before_attention.value(), delta_of(*traits.delta, builder, spec.hidden_size, sizes.eps));
    else if (traits.latent)
      builder.latent_attention(before_attention.value(),
                               latent_attention_of(*traits.latent, builder, spec.hidden_size));
    else
      builder.attention(before_attention, attention_of(half, window, rope), behind_attention);
    if (traits.mixture && traits.mixture->blocks[i])
      builder.mixture(before_mlp, mixture_of(*traits.mixture, builder, spec.hidden_size, sizes.activation));
    else
      builder.mlp(before_mlp, mlp_of(half), behind_mlp);
    spec.blocks[i] = std::move(builder).block();
    for (SublayerSpec& part : spec.blocks[i].sublayers) part.residual_scale = traits.residual_scale;
  }
}

}  // namespace llmq
