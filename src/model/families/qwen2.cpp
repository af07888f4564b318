// Qwen2 and Qwen2.5: biases on q, k and v, never on o; a sliding window from block max_window_layers on when
// use_sliding_window says so.
#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

void read_qwen2(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, layers, {32768, 32, 0}, spec);
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim)};
  LlamaTraits traits;
  traits.qkv_bias = true;
  config.find("attention_bias");  // no field of this family: q, k and v have theirs whatever it says
  config.require_neutral("mlp_bias", false);
  config.require_neutral("use_mrope", false);
  traits.windows = read_qwen_windows(config, spec);
  fill_llama(sizes, traits, spec);
}

void add_qwen2_gguf(const GgufHeader&, Json& config) { config["use_sliding_window"] = false; }

constexpr std::array<GgufKey, 11> kQwen2Keys{
    GgufKey::kBlockCount,  GgufKey::kContextLength,    GgufKey::kEmbeddingLength, GgufKey::kFeedForwardLength,
    GgufKey::kHeadCount,   GgufKey::kKvHeadCount,      GgufKey::kRopeScaling,     GgufKey::kFrequencyBase,
    GgufKey::kNormEpsilon, GgufKey::kUnusualKeyLength, GgufKey::kFileType};
constexpr GgufFamily kQwen2Gguf = {.architecture = "qwen2",
                                   .names = kLlamaNames,
                                   .keys = kQwen2Keys,
                                   .large = GgufLarge::kAll,
                                   .add_config = add_qwen2_gguf};

}  // namespace

extern const Family kQwen2Family = {"qwen2", "Qwen2ForCausalLM", false, read_qwen2, &kQwen2Gguf};

}  // namespace llmq
