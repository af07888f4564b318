// GLM-4 of 2025 (9B and 32B, 0414): Llama with a norm before and one behind each mixer, gate and up stored as
// one linear, and of each head a half that turns, whose pairs are neighbours. Source: Transformers'
// configuration_glm4 and modeling_glm4.
#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

void read_glm4(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  const LlamaSizes sizes =
      read_llama_sizes(config, layers, {131072, 2, config.is_null("head_dim") ? 0 : 128, 1.5625e-7}, spec);
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim, {.partial = true, .share = 0.5})};
  LlamaTraits traits;
  traits.qkv_bias = config.flag("attention_bias", true);
  traits.norms = {"input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm",
                  "post_mlp_layernorm"};
  traits.fused_gate_up = true;
  traits.turns.assign(spec.blocks.size(), {0, spec.ropes.front().dims, RopePairs::kNeighbours});
  fill_llama(sizes, traits, spec);
}

constexpr std::array<GgufName, 10> kGlm4BlockNames{{{"attn_norm", "input_layernorm"},
                                                    {"attn_q", "self_attn.q_proj"},
                                                    {"attn_k", "self_attn.k_proj"},
                                                    {"attn_v", "self_attn.v_proj"},
                                                    {"attn_output", "self_attn.o_proj"},
                                                    {"post_attention_norm", "post_self_attn_layernorm"},
                                                    {"ffn_norm", "post_attention_layernorm"},
                                                    {"ffn_up", "mlp.gate_up_proj"},
                                                    {"ffn_down", "mlp.down_proj"},
                                                    {"post_ffw_norm", "post_mlp_layernorm"}}};
constexpr std::array<GgufKey, 12> kGlm4Keys{
    GgufKey::kBlockCount,  GgufKey::kContextLength,   GgufKey::kEmbeddingLength, GgufKey::kFeedForwardLength,
    GgufKey::kHeadCount,   GgufKey::kKvHeadCount,     GgufKey::kRopeScaling,     GgufKey::kFrequencyBase,
    GgufKey::kNormEpsilon, GgufKey::kStatedKeyLength, GgufKey::kFileType,        GgufKey::kTurningDimensions};
// Where tokenizer_config.json says nothing.
constexpr std::array<std::pair<const char*, const char*>, 4> kGlm4Tokens{
    {{"eos", "<|endoftext|>"}, {"eot", "<|user|>"}, {"unknown", "<|endoftext|>"}, {"bos", "<|endoftext|>"}}};

void add_glm4_gguf(const GgufHeader& header, Json& config) {
  // GLM-4.1V's decoder: rows of q and k lie so that halves turn.
  const std::string sections = "glm4.rope.dimension_sections";
  if (header.find(sections) != nullptr)
    for (const std::int64_t section : header.integers(sections))
      if (section != 0) unsupported_gguf(header, sections, "turns parts of a head by places in an image");
  config["attention_bias"] = has_gguf_biases(header, {"attn_q", "attn_k", "attn_v"});
  if (config.find("partial_rotary_factor") == nullptr) config["partial_rotary_factor"] = 1.0;
}

constexpr GgufFamily kGlm4Gguf = {.architecture = "glm4",
                                  .names = {"model.layers", kLlamaModelNames, kGlm4BlockNames},
                                  .keys = kGlm4Keys,
                                  .partial_rope = true,
                                  .vocabulary = {.special = kGlm4Tokens},
                                  .add_config = add_glm4_gguf};

}  // namespace

extern const Family kGlm4Family = {"glm4", "Glm4ForCausalLM", false, read_glm4, &kGlm4Gguf};

}  // namespace llmq
