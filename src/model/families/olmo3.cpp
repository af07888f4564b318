// OLMo 3: OLMo 2 of which three blocks of four have a window; only those without one stretch their rope.
// Source: Transformers' configuration_olmo3 and modeling_olmo3.
//
// GGUF has OLMo 2's architecture for it, with a window.
#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

constexpr double kOlmo3Theta = 5e5;  // where rope_theta is absent
constexpr std::int64_t kOlmo3Period = 4;

void read_olmo3(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, layers, {2048, 0, 0, 1e-5}, spec);
  spec.ropes = read_ropes_by_attention(config, spec.max_position, sizes.head_dim, kOlmo3Theta);
  LlamaTraits traits;
  traits.qkv_bias = traits.o_bias = config.flag("attention_bias", false);
  traits.norms = {nullptr, "post_attention_layernorm", nullptr, "post_feedforward_layernorm"};
  traits.query_key_norm_over_all = true;
  traits.windows = read_periodic_windows(config, spec, kOlmo3Period);
  for (const std::int64_t window : traits.windows)
    traits.turns.push_back({window != 0 ? 1u : 0u, sizes.head_dim});
  fill_llama(sizes, traits, spec);
}

constexpr std::array<GgufKey, 14> kOlmo3Keys{GgufKey::kBlockCount,
                                             GgufKey::kContextLength,
                                             GgufKey::kEmbeddingLength,
                                             GgufKey::kFeedForwardLength,
                                             GgufKey::kHeadCount,
                                             GgufKey::kKvHeadCount,
                                             GgufKey::kRopeScaling,
                                             GgufKey::kFrequencyBase,
                                             GgufKey::kWindowFrequencyBase,
                                             GgufKey::kNormEpsilon,
                                             GgufKey::kStatedKeyLength,
                                             GgufKey::kFileType,
                                             GgufKey::kWindow,
                                             GgufKey::kWindowPattern};

void add_olmo3_gguf(const GgufHeader& header, Json& config) {
  config["attention_bias"] = has_gguf_biases(header, {"attn_q", "attn_k", "attn_v", "attn_output"});
  config["sliding_window"] = gguf_window(header);
  const std::int64_t blocks = config.at("num_hidden_layers").as_integer();
  config["layer_types"] = gguf_layer_types(header, blocks, kOlmo3Period);
}

constexpr GgufFamily kOlmo3Gguf = {.architecture = "olmo2",
                                   .names = kOlmo2Names,
                                   .keys = kOlmo3Keys,
                                   .one_rope_base = true,
                                   .window = GgufWindow::kIfThere,
                                   .add_config = add_olmo3_gguf};

}  // namespace

extern const Family kOlmo3Family = {"olmo3", "Olmo3ForCausalLM", false, read_olmo3, &kOlmo3Gguf};

}  // namespace llmq
