// Command R and R7B: attention and MLP side by side, both of one layer norm without bias; rope turns pairs of
// neighbours; logits are scaled. Of Command R+ each head of q and k passes a layer norm with a gain of its
// own before it turns. Of Cohere 2, three blocks of four have a window and the others do not turn.
// Source: Transformers' configuration_ and modeling_ of cohere and of cohere2.
#include <fmt/format.h>

#include "model/block_builder.h"
#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

constexpr int kCohere2Period = 4;

struct CohereBlock {
  LlamaSizes sizes;
  NormSpec norm;
  std::int64_t hidden = 0;
  bool bias = false;   // of the linears of attention
  bool norms = false;  // of heads
};

BlockSpec cohere_block(const std::string& prefix, const CohereBlock& like, std::int64_t window,
                       std::int64_t turning) {
  const LlamaSizes& sizes = like.sizes;
  const std::int64_t queries = std::int64_t{sizes.heads} * sizes.head_dim,
                     keys = std::int64_t{sizes.kv_heads} * sizes.head_dim;
  BlockBuilder builder(prefix);
  const NormId norm = builder.norm("input_layernorm", like.norm, like.hidden, false);
  AttentionSpec attention;
  attention.heads = sizes.heads, attention.kv_heads = sizes.kv_heads, attention.head_dim = sizes.head_dim;
  attention.window = window, attention.rope = {0, turning, RopePairs::kNeighbours};
  attention.input = builder.site("x_attn", like.hidden), attention.inner = builder.site("x_o", queries);
  attention.query = {builder.linear("self_attn.q_proj", attention.input, {queries}, like.bias)};
  attention.key = {builder.linear("self_attn.k_proj", attention.input, {keys}, like.bias)};
  attention.value = {builder.linear("self_attn.v_proj", attention.input, {keys}, like.bias)};
  attention.output = builder.linear("self_attn.o_proj", attention.inner, {like.hidden}, like.bias);
  if (like.norms) {
    const auto norm_of_heads = [&](const char* name, int heads) {
      NormSpec of_heads = like.norm;
      of_heads.heads = heads;
      return builder.norm(name, of_heads, sizes.head_dim, false);
    };
    attention.query_norm = norm_of_heads("self_attn.q_norm", sizes.heads);
    attention.key_norm = norm_of_heads("self_attn.k_norm", sizes.kv_heads);
  }
  MlpSpec mlp;
  mlp.width = sizes.intermediate_size, mlp.activation = sizes.activation;
  mlp.input = attention.input, mlp.inner = builder.site("x_down", mlp.width);
  mlp.gate = Part{builder.linear("mlp.gate_proj", mlp.input, {mlp.width}, false)};
  mlp.up = {builder.linear("mlp.up_proj", mlp.input, {mlp.width}, false)};
  mlp.output = builder.linear("mlp.down_proj", mlp.inner, {like.hidden}, false);
  builder.side_by_side(norm, std::move(attention), std::move(mlp));
  return std::move(builder).block();
}

// Everything but the blocks.
CohereBlock read_cohere_model(ConfigFields& config, std::int64_t layers, double theta, ModelSpec& spec) {
  CohereBlock like;
  like.sizes = read_llama_sizes(config, layers, {8192, 0, 0}, spec);
  spec.ropes = {read_rope(config, spec.max_position, like.sizes.head_dim, {.theta = theta})};
  like.hidden = spec.hidden_size;
  like.bias = config.flag("attention_bias", false);
  config.find("model_max_length");  // of the tokenizer
  like.norm.kind = NormSpec::Kind::kLayer;
  like.norm.eps = static_cast<float>(config.number("layer_norm_eps", {0, 1}, 1e-5));
  spec.embedding.tensor = "model.embed_tokens.weight";
  spec.final_norm = like.norm;
  spec.final_norm.gain = {"model.norm.weight"};
  spec.final_norm.width = spec.hidden_size;
  spec.final_norm.scale = config.number("logit_scale", {1e-6, 1e6}, 0.0625);
  return like;
}

void read_cohere(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  CohereBlock like = read_cohere_model(config, layers, 5e5, spec);
  like.norms = config.flag("use_qk_norm", false);
  for (std::size_t i = 0; i < spec.blocks.size(); ++i)
    spec.blocks[i] = cohere_block(fmt::format("model.layers.{}", i), like, 0, spec.ropes.front().dims);
}

// In the files of the models and read by nobody: held to what the architecture does.
void require_command_r7b(ConfigFields& config, std::int64_t period) {
  config.require_neutral("position_embedding_type", "rope_gptj");
  config.require_neutral("rotary_pct", 1.0);
  config.require_neutral("order_of_interleaved_layers", "local_attn_first");
  config.require_neutral("layer_switch", period);
  for (const char* key : {"use_embedding_sharing", "use_gated_activation", "use_parallel_block"})
    config.require_neutral(key, true);
  config.find("use_parallel_embedding");
  config.find("cache_implementation");
}

void read_cohere2(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  const CohereBlock like = read_cohere_model(config, layers, 1e4, spec);
  if (std::int64_t{like.sizes.heads} * like.sizes.head_dim != spec.hidden_size)
    config.unsupported("head_dim", fmt::format("is {}, and hidden_size over num_attention_heads is another",
                                               like.sizes.head_dim));
  const std::int64_t period =
      config.integer("sliding_window_pattern", {1, kLayersRange.most}, kCohere2Period);
  require_command_r7b(config, period);
  const std::vector<std::int64_t> windows = read_periodic_windows(config, spec, period);
  for (std::size_t i = 0; i < spec.blocks.size(); ++i)
    spec.blocks[i] = cohere_block(fmt::format("model.layers.{}", i), like, windows[i],
                                  windows[i] != 0 ? spec.ropes.front().dims : 0);
}

constexpr auto kCohereBlockNames =
    joined(kAttentionNames, kHeadNormNames,
           std::array<GgufName, 3>{
               {{"ffn_gate", "mlp.gate_proj"}, {"ffn_up", "mlp.up_proj"}, {"ffn_down", "mlp.down_proj"}}});
constexpr GgufNames kCohereNames{"model.layers", kLlamaModelNames, kCohereBlockNames};

constexpr std::array<GgufKey, 12> kCohereKeys{
    GgufKey::kBlockCount,        GgufKey::kStatedContextLength, GgufKey::kEmbeddingLength,
    GgufKey::kFeedForwardLength, GgufKey::kHeadCount,           GgufKey::kKvHeadCount,
    GgufKey::kFrequencyBase,     GgufKey::kLayerNormEpsilon,    GgufKey::kStatedKeyLength,
    GgufKey::kFileType,          GgufKey::kLogitMultiplier,     GgufKey::kNoRopeScaling};
constexpr std::array<GgufKey, 15> kCohere2Keys{
    GgufKey::kBlockCount,        GgufKey::kContextLength,     GgufKey::kEmbeddingLength,
    GgufKey::kFeedForwardLength, GgufKey::kHeadCount,         GgufKey::kKvHeadCount,
    GgufKey::kFrequencyBase,     GgufKey::kLayerNormEpsilon,  GgufKey::kKeyLength,
    GgufKey::kFileType,          GgufKey::kLogitMultiplier,   GgufKey::kWindow,
    GgufKey::kVocabularySize,    GgufKey::kTurningDimensions, GgufKey::kNoRopeScaling};

// What both have. llama.cpp has no place for the bias of the output of attention, without which Transformers
// knows none of the others.
void add_cohere(const GgufHeader& header, Json& config) {
  const std::string prefix = std::string(header.string("general.architecture")) + ".";
  const double scale = header.find_number(prefix + "logit_scale").value_or(1.0);
  config["logit_scale"] = scale == 0 ? 1.0 : scale;
  config["layer_norm_eps"] = header.number(prefix + "attention.layer_norm_epsilon");
  config["attention_bias"] = has_gguf_biases(header, {"attn_q", "attn_k", "attn_v", "attn_output"});
}

void add_cohere_gguf(const GgufHeader& header, Json& config) {
  add_cohere(header, config);
  config["use_qk_norm"] = find_gguf_tensor(header, "blk.0.attn_q_norm.weight") != nullptr;
}

void add_cohere2_gguf(const GgufHeader& header, Json& config) {
  add_cohere(header, config);
  config["sliding_window"] = gguf_window(header);
  config["layer_types"] =
      gguf_layer_types(header, config.at("num_hidden_layers").as_integer(), kCohere2Period);
  config["rotary_pct"] = 1.0;  // which llama.cpp's converter asks for
}

constexpr GgufFamily kCohereGguf = {.architecture = "command-r",
                                    .names = kCohereNames,
                                    .keys = kCohereKeys,
                                    .head_norms_from = 64,
                                    .tied = true,
                                    .add_config = add_cohere_gguf};
constexpr GgufFamily kCohere2Gguf = {.architecture = "cohere2",
                                     .names = kCohereNames,
                                     .keys = kCohere2Keys,
                                     .window = GgufWindow::kAlways,
                                     .full_attention_every = kCohere2Period,
                                     .tied = true,
                                     .add_config = add_cohere2_gguf};

}  // namespace

extern const Family kCohereFamily = {"cohere", "CohereForCausalLM", true, read_cohere, &kCohereGguf};
extern const Family kCohere2Family = {"cohere2", "Cohere2ForCausalLM", true, read_cohere2, &kCohere2Gguf};

}  // namespace llmq
