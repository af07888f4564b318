// Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: Llama whose q, k and v are stored as one linear, and gate and up as
// another; longrope; in Phi-4-mini three quarters of a head turn. Source: Transformers' configuration_phi3
// and modeling_phi3.
#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

void read_phi3(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, layers, {4096, 0, 0, 1e-5}, spec);
  RopeSpec rope = read_rope(config, spec.max_position, sizes.head_dim, {.partial = true});
  // Read by longrope alone; beside another rope it means nothing, and a GGUF says it.
  const std::int64_t original = config.integer("original_max_position_embeddings", kPositionsRange, 4096);
  if (rope.kind == RopeKind::kDefault) rope.original_max_position = original;
  spec.ropes = {std::move(rope)};
  config.require_neutral("attention_bias", false);
  config.require_neutral("mlp_bias", false);
  const std::int64_t window =
      config.find("sliding_window") == nullptr ? 0 : config.integer("sliding_window", kPositionsRange);
  for (const bool sliding : read_layer_types(config, spec))
    if (sliding != (window != 0))
      config.unsupported("layer_types", "mixes full and sliding attention, which family phi3 does not do");
  LlamaTraits traits;
  traits.fused_qkv = traits.fused_gate_up = true;
  traits.windows.assign(spec.blocks.size(), window);
  fill_llama(sizes, traits, spec);
}

constexpr std::array<GgufName, 6> kPhi3BlockNames{{{"attn_norm", "input_layernorm"},
                                                   {"attn_qkv", "self_attn.qkv_proj"},
                                                   {"attn_output", "self_attn.o_proj"},
                                                   {"ffn_norm", "post_attention_layernorm"},
                                                   {"ffn_up", "mlp.gate_up_proj"},
                                                   {"ffn_down", "mlp.down_proj"}}};

constexpr std::array<GgufKey, 12> kPhi3Keys{
    GgufKey::kContextLength,     GgufKey::kOriginalContext, GgufKey::kEmbeddingLength,
    GgufKey::kFeedForwardLength, GgufKey::kBlockCount,      GgufKey::kHeadCount,
    GgufKey::kKvHeadCount,       GgufKey::kNormEpsilon,     GgufKey::kTurningDimensions,
    GgufKey::kFrequencyBase,     GgufKey::kFileType,        GgufKey::kWindow};

void add_phi3_gguf(const GgufHeader& header, Json& config) {
  const std::int64_t window = gguf_window(header);
  config["sliding_window"] = window == 0 ? Json() : Json(window);
}

constexpr GgufFamily kPhi3Gguf = {.architecture = "phi3",
                                  .names = {"model.layers", kLlamaModelNames, kPhi3BlockNames},
                                  .keys = kPhi3Keys,
                                  .partial_rope = true,
                                  .window = GgufWindow::kAlways,
                                  .scaling = GgufScaling::kLongFactors,
                                  .vocabulary = {.added_as_told = true},
                                  .add_config = add_phi3_gguf};

}  // namespace

extern const Family kPhi3Family = {"phi3", "Phi3ForCausalLM", false, read_phi3, &kPhi3Gguf};

}  // namespace llmq
