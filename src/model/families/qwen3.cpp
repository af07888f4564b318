// Qwen3: an RMS norm over each head of q and k before rope, an explicit head_dim (128 when absent), windows
// as Qwen2.
#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

void read_qwen3(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, layers, {32768, 32, 128}, spec);
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim)};
  LlamaTraits traits;
  traits.qkv_bias = traits.o_bias = config.flag("attention_bias", false);
  traits.query_key_norm = true;
  config.require_neutral("mlp_bias", false);
  traits.windows = read_qwen_windows(config, spec);
  fill_llama(sizes, traits, spec);
}

void add_qwen3_gguf(const GgufHeader& header, Json& config) {
  config["use_sliding_window"] = false;
  config["attention_bias"] = has_gguf_biases(header, {"attn_q", "attn_k", "attn_v", "attn_output"});
}

constexpr GgufFamily kQwen3Gguf = {
    .architecture = "qwen3", .names = kLlamaNames, .keys = kQwen3Keys, .add_config = add_qwen3_gguf};

}  // namespace

extern const Family kQwen3Family = {"qwen3", "Qwen3ForCausalLM", false, read_qwen3, &kQwen3Gguf};

}  // namespace llmq
