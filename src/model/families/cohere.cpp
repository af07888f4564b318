// Command R and R7B: attention and MLP side by side, both of one layer norm without bias; rope turns pairs of
// neighbours; logits are scaled. Of Cohere 2, three blocks of four have a window and the others do not turn.
// Source: Transformers' configuration_ and modeling_ of cohere and of cohere2.
#include <fmt/format.h>

#include "model/block_builder.h"
#include "model/structures/llama_like.h"

namespace llmq {
namespace {

struct CohereBlock {
  LlamaSizes sizes;
  NormSpec norm;
  std::int64_t hidden = 0;
  bool bias = false;  // of the linears of attention
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
  config.require_neutral("use_qk_norm", false);
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
  const CohereBlock like = read_cohere_model(config, layers, 5e5, spec);
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
  const std::int64_t period = config.integer("sliding_window_pattern", {1, kLayersRange.most}, 4);
  require_command_r7b(config, period);
  const std::vector<std::int64_t> windows = read_periodic_windows(config, spec, period);
  for (std::size_t i = 0; i < spec.blocks.size(); ++i)
    spec.blocks[i] = cohere_block(fmt::format("model.layers.{}", i), like, windows[i],
                                  windows[i] != 0 ? spec.ropes.front().dims : 0);
}

}  // namespace

extern const Family kCohereFamily = {"cohere", "CohereForCausalLM", true, read_cohere};
extern const Family kCohere2Family = {"cohere2", "Cohere2ForCausalLM", true, read_cohere2};

}  // namespace llmq
