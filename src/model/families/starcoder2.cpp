// StarCoder2: layer norms and, by use_bias, biases everywhere; grouped heads that rope turns, one window for
// all blocks, and an MLP without a gate, whose GELU no scale passes. Source: Transformers'
// configuration_starcoder2 and modeling_starcoder2.
#include <fmt/format.h>

#include "model/block_builder.h"
#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

struct Starcoder2Block {
  LlamaSizes sizes;
  NormSpec norm;
  RopeUse rope;
  std::int64_t hidden = 0, window = 0;
  bool bias = true;
};

BlockSpec starcoder2_block(const std::string& prefix, const Starcoder2Block& like) {
  const LlamaSizes& sizes = like.sizes;
  const std::int64_t queries = std::int64_t{sizes.heads} * sizes.head_dim,
                     keys = std::int64_t{sizes.kv_heads} * sizes.head_dim;
  BlockBuilder builder(prefix);
  const NormId first = builder.norm("input_layernorm", like.norm, like.hidden),
               second = builder.norm("post_attention_layernorm", like.norm, like.hidden);
  AttentionSpec attention;
  attention.heads = sizes.heads, attention.kv_heads = sizes.kv_heads, attention.head_dim = sizes.head_dim;
  attention.window = like.window, attention.rope = like.rope;
  attention.input = builder.site("x_attn", like.hidden), attention.inner = builder.site("x_o", queries);
  attention.query = {builder.linear("self_attn.q_proj", attention.input, {queries}, like.bias)};
  attention.key = {builder.linear("self_attn.k_proj", attention.input, {keys}, like.bias)};
  attention.value = {builder.linear("self_attn.v_proj", attention.input, {keys}, like.bias)};
  attention.output = builder.linear("self_attn.o_proj", attention.inner, {like.hidden}, like.bias);
  builder.attention(first, attention);
  MlpSpec mlp;
  mlp.width = sizes.intermediate_size, mlp.activation = sizes.activation;
  mlp.input = builder.site("x_mlp", like.hidden), mlp.inner = builder.site("x_down", mlp.width);
  mlp.up = {builder.linear("mlp.c_fc", mlp.input, {mlp.width}, like.bias)};
  mlp.output = builder.linear("mlp.c_proj", mlp.inner, {like.hidden}, like.bias);
  builder.mlp(second, mlp);
  return std::move(builder).block();
}

void read_starcoder2(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  Starcoder2Block like;
  like.sizes = read_llama_sizes(config, layers, {4096, 2, 0}, spec, "gelu_pytorch_tanh");
  spec.ropes = {read_rope(config, spec.max_position, like.sizes.head_dim)};
  like.rope = {0, spec.ropes.front().dims};
  like.hidden = spec.hidden_size;
  like.bias = config.flag("use_bias", true);
  like.window = config.integer("sliding_window", {1, kPositionsRange.most}, 0);
  like.norm.kind = NormSpec::Kind::kLayer;
  like.norm.eps = static_cast<float>(config.number("norm_epsilon", {0, 1}, 1e-5));
  config.find("residual_dropout"), config.find("embedding_dropout");  // of training
  // In the files of the models, and read by nobody: softmax is FP32 here in any case.
  for (const char* key : {"activation_function", "layer_norm_epsilon", "attention_softmax_in_fp32",
                          "scale_attention_softmax_in_fp32"})
    config.find(key);
  config.require_neutral("scale_attn_weights", true);
  config.require_neutral("mlp_type", "default");
  config.require_neutral("norm_type", "layer_norm");
  spec.embedding.tensor = "model.embed_tokens.weight";
  spec.final_norm = like.norm;
  spec.final_norm.gain = {"model.norm.weight"}, spec.final_norm.bias = {"model.norm.bias"};
  spec.final_norm.width = spec.hidden_size;
  for (std::size_t i = 0; i < spec.blocks.size(); ++i)
    spec.blocks[i] = starcoder2_block(fmt::format("model.layers.{}", i), like);
}

constexpr auto kStarcoder2BlockNames = joined(
    kAttentionNames,
    std::array<GgufName, 3>{
        {{"ffn_norm", "post_attention_layernorm"}, {"ffn_up", "mlp.c_fc"}, {"ffn_down", "mlp.c_proj"}}});
constexpr std::array<GgufKey, 12> kStarcoder2Keys{
    GgufKey::kBlockCount,        GgufKey::kContextLength, GgufKey::kEmbeddingLength,
    GgufKey::kFeedForwardLength, GgufKey::kHeadCount,     GgufKey::kKvHeadCount,
    GgufKey::kRopeScaling,       GgufKey::kFrequencyBase, GgufKey::kLayerNormEpsilon,
    GgufKey::kStatedKeyLength,   GgufKey::kFileType,      GgufKey::kWindow};

void add_starcoder2_gguf(const GgufHeader& header, Json& config);

constexpr GgufFamily kStarcoder2Gguf = {.architecture = "starcoder2",
                                        .names = {"model.layers", kLlamaModelNames, kStarcoder2BlockNames},
                                        .keys = kStarcoder2Keys,
                                        .output_biases = true,
                                        .needs_biases = true,
                                        .window = GgufWindow::kOrNone,
                                        .activation = Activation::kGeluTanh,
                                        .add_config = add_starcoder2_gguf};

void add_starcoder2_gguf(const GgufHeader& header, Json& config) {
  const std::int64_t window = gguf_window(header);
  config["hidden_act"] = "gelu_pytorch_tanh";
  config["norm_epsilon"] = header.number(kStarcoder2Gguf.key(GgufKey::kLayerNormEpsilon));
  config["sliding_window"] = window > 0 ? Json(window) : Json();
  config["use_bias"] =
      has_gguf_biases(header, {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"});
}

}  // namespace

extern const Family kStarcoder2Family = {"starcoder2", "Starcoder2ForCausalLM", true, read_starcoder2,
                                         &kStarcoder2Gguf};

}  // namespace llmq
