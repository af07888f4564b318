// Falcon 7B: attention of one KV head and an MLP with a GELU side by side, both of one layer norm; q, k and v
// are stored as one linear. Source: Transformers' configuration_falcon and modeling_falcon.
//
// Falcon 40B and 180B (new_decoder_architecture) store the rows of each KV head's q, k and v together, the
// models of RefinedWeb have ALiBi or mixers one behind another: they are refused by their keys. Falcon 3 is
// Llama by its model_type.
#include <fmt/format.h>

#include "model/block_builder.h"
#include "model/families/family.h"

namespace llmq {
namespace {

struct FalconBlock {
  int heads = 0, head_dim = 0;
  std::int64_t hidden = 0, width = 0, turning = 0;
  NormSpec norm;
  bool bias = false;
};

BlockSpec falcon_block(const std::string& prefix, const FalconBlock& like) {
  BlockBuilder builder(prefix);
  const NormId norm = builder.norm("input_layernorm", like.norm, like.hidden);
  AttentionSpec attention;
  attention.heads = like.heads, attention.kv_heads = 1, attention.head_dim = like.head_dim;
  attention.rope = {0, like.turning};
  attention.input = builder.site("x_attn", like.hidden), attention.inner = builder.site("x_o", like.hidden);
  const LinearId qkv = builder.linear("self_attention.query_key_value", attention.input,
                                      {like.hidden, like.head_dim, like.head_dim}, like.bias);
  attention.query = {qkv, 0}, attention.key = {qkv, 1}, attention.value = {qkv, 2};
  attention.output = builder.linear("self_attention.dense", attention.inner, {like.hidden}, like.bias);
  MlpSpec mlp;
  mlp.width = like.width, mlp.activation = Activation::kGelu;
  mlp.input = attention.input, mlp.inner = builder.site("x_down", like.width);
  mlp.up = {builder.linear("mlp.dense_h_to_4h", mlp.input, {like.width}, like.bias)};
  mlp.output = builder.linear("mlp.dense_4h_to_h", mlp.inner, {like.hidden}, like.bias);
  builder.side_by_side(norm, std::move(attention), std::move(mlp));
  return std::move(builder).block();
}

void refuse_other_falcons(ConfigFields& config) {
  config.require_neutral("new_decoder_architecture", false);
  config.require_neutral("multi_query", true);
  config.require_neutral("parallel_attn", true);
  config.require_neutral("alibi", false);
  config.require_neutral("apply_residual_connection_post_layernorm", false);
  config.require_neutral("activation", "gelu");
  // Of the new decoder alone.
  config.find("num_kv_heads"), config.find("num_ln_in_parallel_attn");
}

void read_falcon(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  read_common_sizes(config, layers, spec);
  refuse_other_falcons(config);
  spec.max_position = config.integer("max_position_embeddings", kPositionsRange, 2048);
  FalconBlock like;
  like.hidden = spec.hidden_size;
  like.heads = static_cast<int>(config.integer("num_attention_heads", kHeadsRange));
  if (like.hidden % like.heads != 0 || like.hidden / like.heads % 2 != 0)
    config.bad("num_attention_heads", fmt::format("is {}, which makes no heads of pairs of hidden_size {}",
                                                  like.heads, like.hidden));
  like.head_dim = static_cast<int>(like.hidden / like.heads);
  spec.ropes = {read_rope(config, spec.max_position, like.head_dim)};
  like.turning = spec.ropes.front().dims;
  like.width = config.integer("ffn_hidden_size", kWidthRange, 4 * like.hidden);
  like.bias = config.flag("bias", false);
  like.norm.kind = NormSpec::Kind::kLayer;
  like.norm.eps = static_cast<float>(config.number("layer_norm_epsilon", {0, 1}, 1e-5));
  spec.embedding.tensor = "transformer.word_embeddings.weight";
  spec.final_norm = like.norm;
  spec.final_norm.gain = {"transformer.ln_f.weight"}, spec.final_norm.bias = {"transformer.ln_f.bias"};
  spec.final_norm.width = spec.hidden_size;
  for (std::size_t i = 0; i < spec.blocks.size(); ++i)
    spec.blocks[i] = falcon_block(fmt::format("transformer.h.{}", i), like);
}

}  // namespace

extern const Family kFalconFamily = {"falcon", "FalconForCausalLM", true, read_falcon};

}  // namespace llmq
