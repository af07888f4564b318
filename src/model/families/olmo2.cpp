// OLMo 2: Llama with norms behind the mixers and none before them, and an RMS norm over all heads of q at
// once, another over all of k. Source: Transformers' configuration_olmo2 and modeling_olmo2.
#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

void read_olmo2(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, layers, {2048, 0, 0, 1e-5}, spec);
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim)};
  LlamaTraits traits;
  traits.qkv_bias = traits.o_bias = config.flag("attention_bias", false);
  traits.norms = {nullptr, "post_attention_layernorm", nullptr, "post_feedforward_layernorm"};
  traits.query_key_norm_over_all = true;
  fill_llama(sizes, traits, spec);
}

constexpr std::array<GgufKey, 10> kOlmo2Keys{
    GgufKey::kBlockCount,  GgufKey::kContextLength, GgufKey::kEmbeddingLength, GgufKey::kFeedForwardLength,
    GgufKey::kHeadCount,   GgufKey::kKvHeadCount,   GgufKey::kRopeScaling,     GgufKey::kFrequencyBase,
    GgufKey::kNormEpsilon, GgufKey::kFileType};

void add_olmo2_gguf(const GgufHeader& header, Json& config) {
  config["attention_bias"] = has_gguf_biases(header, {"attn_q", "attn_k", "attn_v", "attn_output"});
}

constexpr GgufFamily kOlmo2Gguf = {
    .architecture = "olmo2", .names = kOlmo2Names, .keys = kOlmo2Keys, .add_config = add_olmo2_gguf};

}  // namespace

extern const Family kOlmo2Family = {"olmo2", "Olmo2ForCausalLM", false, read_olmo2, &kOlmo2Gguf};

}  // namespace llmq
