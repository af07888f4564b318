// Falcon: attention and an MLP with a GELU side by side; q, k and v are stored as one linear. Source:
// Transformers' configuration_falcon and modeling_falcon.
//
//   7B                          one KV head, whose rows follow those of all queries; one layer norm for both
//   new_decoder_architecture    (40B, 180B, Falcon2 11B) the rows of each KV head's q, k and v together; a
//                               layer norm for each of the two, or one (num_ln_in_parallel_attn)
//
// The models of RefinedWeb have ALiBi or mixers one behind another: they are refused by their keys. Falcon 3
// is Llama by its model_type.
#include <fmt/format.h>

#include "model/block_builder.h"
#include "model/families/family.h"
#include "model/gguf/falcon_gguf.h"

namespace llmq {
namespace {

struct FalconBlock {
  int heads = 0, kv_heads = 1, head_dim = 0;
  std::int64_t hidden = 0, width = 0, turning = 0;
  NormSpec norm;
  bool bias = false, grouped = false, two_norms = false;
};

AttentionSpec falcon_attention(const FalconBlock& like, BlockBuilder& builder) {
  AttentionSpec attention;
  attention.heads = like.heads, attention.kv_heads = like.kv_heads, attention.head_dim = like.head_dim;
  attention.rope = {0, like.turning};
  attention.grouped = like.grouped;
  attention.input = builder.site("x_attn", like.hidden), attention.inner = builder.site("x_o", like.hidden);
  std::vector<std::int64_t> parts{like.hidden, like.head_dim, like.head_dim};
  if (like.grouped) parts = {like.kv_heads * attention.group_rows()};
  const LinearId qkv =
      builder.linear("self_attention.query_key_value", attention.input, std::move(parts), like.bias);
  attention.query = attention.key = attention.value = {qkv, 0};
  if (!like.grouped) attention.key = {qkv, 1}, attention.value = {qkv, 2};
  attention.output = builder.linear("self_attention.dense", attention.inner, {like.hidden}, like.bias);
  return attention;
}

MlpSpec falcon_mlp(const FalconBlock& like, SiteId input, BlockBuilder& builder) {
  MlpSpec mlp;
  mlp.width = like.width, mlp.activation = Activation::kGelu;
  mlp.input = input, mlp.inner = builder.site("x_down", like.width);
  mlp.up = {builder.linear("mlp.dense_h_to_4h", mlp.input, {like.width}, like.bias)};
  mlp.output = builder.linear("mlp.dense_4h_to_h", mlp.inner, {like.hidden}, like.bias);
  return mlp;
}

BlockSpec falcon_block(const std::string& prefix, const FalconBlock& like) {
  BlockBuilder builder(prefix);
  if (!like.two_norms) {
    const NormId norm = builder.norm("input_layernorm", like.norm, like.hidden);
    AttentionSpec attention = falcon_attention(like, builder);
    MlpSpec mlp = falcon_mlp(like, attention.input, builder);
    builder.side_by_side(norm, std::move(attention), std::move(mlp));
    return std::move(builder).block();
  }
  const NormId before_attention = builder.norm("ln_attn", like.norm, like.hidden),
               before_mlp = builder.norm("ln_mlp", like.norm, like.hidden);
  builder.attention(before_attention, falcon_attention(like, builder));
  builder.mlp(before_mlp, falcon_mlp(like, builder.site("x_mlp", like.hidden), builder));
  builder.join_last_two();
  return std::move(builder).block();
}

void read_forms(ConfigFields& config, FalconBlock& like) {
  like.grouped = config.flag("new_decoder_architecture", false);
  config.require_neutral("parallel_attn", true);
  config.require_neutral("alibi", false);
  config.require_neutral("apply_residual_connection_post_layernorm", false);
  config.require_neutral("activation", "gelu");
  constexpr const char *kKvHeads = "num_kv_heads", *kNorms = "num_ln_in_parallel_attn";
  if (!like.grouped) {
    config.require_neutral("multi_query", true);
    config.find(kKvHeads), config.find(kNorms);  // of the new decoder alone
    return;
  }
  config.find("multi_query");
  like.kv_heads = static_cast<int>(config.integer(kKvHeads, kHeadsRange, like.heads));
  if (like.heads % like.kv_heads != 0)
    config.bad(kKvHeads,
               fmt::format("is {}, which does not divide num_attention_heads {}", like.kv_heads, like.heads));
  like.two_norms = config.integer(kNorms, {1, 2}, 2) == 2;
}

void read_falcon(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  read_common_sizes(config, layers, spec);
  spec.max_position = config.integer("max_position_embeddings", kPositionsRange, 2048);
  FalconBlock like;
  like.hidden = spec.hidden_size;
  like.heads = static_cast<int>(config.integer("num_attention_heads", kHeadsRange));
  read_forms(config, like);
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

extern const Family kFalconFamily = {"falcon", "FalconForCausalLM", true, read_falcon, &kFalconGguf};

}  // namespace llmq
