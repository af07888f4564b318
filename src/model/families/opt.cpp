// OPT: layer norms and biases everywhere, learned positions from row 2 of their table on, and an MLP without
// a gate whose ReLU lets a positive scale of fc1's rows pass to fc2. Source: Transformers' configuration_opt
// and modeling_opt.
//
// opt-350m is another structure (norms behind the sublayers, a narrower embedding) and is refused by its
// keys.
#include <fmt/format.h>

#include "model/block_builder.h"
#include "model/families/family.h"

namespace llmq {
namespace {

struct OptSizes {
  int heads = 0, head_dim = 0;
  std::int64_t width = 0;
};

BlockSpec opt_block(const std::string& prefix, const OptSizes& sizes, const NormSpec& norm,
                    std::int64_t hidden) {
  BlockBuilder builder(prefix);
  const NormId first = builder.norm("self_attn_layer_norm", norm, hidden),
               second = builder.norm("final_layer_norm", norm, hidden);
  AttentionSpec attention;
  attention.heads = attention.kv_heads = sizes.heads;
  attention.head_dim = sizes.head_dim;
  attention.input = builder.site("x_attn", hidden), attention.inner = builder.site("x_o", hidden);
  attention.query = {builder.linear("self_attn.q_proj", attention.input, {hidden}, true)};
  attention.key = {builder.linear("self_attn.k_proj", attention.input, {hidden}, true)};
  attention.value = {builder.linear("self_attn.v_proj", attention.input, {hidden}, true)};
  attention.output = builder.linear("self_attn.out_proj", attention.inner, {hidden}, true);
  builder.attention(first, attention);
  MlpSpec mlp;
  mlp.width = sizes.width, mlp.activation = Activation::kRelu;
  mlp.input = builder.site("x_mlp", hidden), mlp.inner = builder.site("x_down", sizes.width);
  mlp.up = {builder.linear("fc1", mlp.input, {sizes.width}, true)};
  mlp.output = builder.linear("fc2", mlp.inner, {hidden}, true);
  builder.mlp(second, mlp);
  return std::move(builder).block();
}

void refuse_other_structures(ConfigFields& config, const ModelSpec& spec) {
  config.require_neutral("do_layer_norm_before", true);
  config.require_neutral("enable_bias", true);
  config.require_neutral("layer_norm_elementwise_affine", true);
  config.require_neutral("_remove_final_layer_norm", false);
  config.require_neutral("word_embed_proj_dim", spec.hidden_size);
  config.find("layerdrop"), config.find("dropout"), config.find("init_std");  // of training
  if (const std::string name = config.text("activation_function", "relu"); name != "relu")
    config.unsupported("activation_function", fmt::format("is \"{}\"", name), "only relu is supported");
}

void read_opt(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  constexpr std::int64_t kFirstPosition = 2;
  read_common_sizes(config, layers, spec);
  spec.max_position = config.integer("max_position_embeddings", kPositionsRange, 2048);
  OptSizes sizes;
  sizes.width = config.integer("ffn_dim", kWidthRange);
  sizes.heads = static_cast<int>(config.integer("num_attention_heads", kHeadsRange));
  if (spec.hidden_size % sizes.heads != 0)
    config.bad("num_attention_heads",
               fmt::format("is {}, which does not divide hidden_size {}", sizes.heads, spec.hidden_size));
  sizes.head_dim = static_cast<int>(spec.hidden_size / sizes.heads);
  refuse_other_structures(config, spec);
  NormSpec norm;
  norm.kind = NormSpec::Kind::kLayer;
  norm.eps = 1e-5f;
  spec.embedding = {"model.decoder.embed_tokens.weight", "model.decoder.embed_positions.weight",
                    kFirstPosition};
  spec.final_norm = norm;
  spec.final_norm.gain = {"model.decoder.final_layer_norm.weight"};
  spec.final_norm.bias = {"model.decoder.final_layer_norm.bias"};
  spec.final_norm.width = spec.hidden_size;
  for (std::size_t i = 0; i < spec.blocks.size(); ++i)
    spec.blocks[i] = opt_block(fmt::format("model.decoder.layers.{}", i), sizes, norm, spec.hidden_size);
}

}  // namespace

extern const Family kOptFamily = {"opt", "OPTForCausalLM", true, read_opt};

}  // namespace llmq
