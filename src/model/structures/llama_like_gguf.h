// Names and keys that GGUF has for families like Llama (llama_like.h). The tables of a family say where it
// differs.
#pragma once
#include <array>

#include "model/gguf/gguf_family.h"

namespace llmq {

inline constexpr std::array<GgufName, 3> kLlamaModelNames{
    {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}}};

// One table of several, in their order.
template <typename Row, std::size_t... kSizes>
constexpr auto joined(const std::array<Row, kSizes>&... parts) {
  std::array<Row, (kSizes + ...)> all{};
  std::size_t count = 0;
  const auto add = [&](const auto& part) {
    for (const Row& row : part) all[count++] = row;
  };
  (add(parts), ...);
  return all;
}

inline constexpr std::array<GgufName, 5> kAttentionNames{
    {{"attn_norm", "input_layernorm"},
     {"attn_q", "self_attn.q_proj", GgufName::Heads::kQuery},
     {"attn_k", "self_attn.k_proj", GgufName::Heads::kKey},
     {"attn_v", "self_attn.v_proj"},
     {"attn_output", "self_attn.o_proj"}}};

inline constexpr std::array<GgufName, 2> kHeadNormNames{
    {{"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"}}};

inline constexpr auto kLlamaBlockNames =
    joined(kAttentionNames, kHeadNormNames,
           std::array<GgufName, 4>{{{"ffn_norm", "post_attention_layernorm"},
                                    {"ffn_gate", "mlp.gate_proj"},
                                    {"ffn_up", "mlp.up_proj"},
                                    {"ffn_down", "mlp.down_proj"}}});

// Norms behind the mixers and none before them, as OLMo has them.
inline constexpr std::array<GgufName, 11> kOlmo2BlockNames{
    {{"attn_q", "self_attn.q_proj"},
     {"attn_k", "self_attn.k_proj"},
     {"attn_v", "self_attn.v_proj"},
     {"attn_output", "self_attn.o_proj"},
     {"attn_q_norm", "self_attn.q_norm"},
     {"attn_k_norm", "self_attn.k_norm"},
     {"post_attention_norm", "post_attention_layernorm"},
     {"ffn_gate", "mlp.gate_proj"},
     {"ffn_up", "mlp.up_proj"},
     {"ffn_down", "mlp.down_proj"},
     {"post_ffw_norm", "post_feedforward_layernorm"}}};
inline constexpr GgufNames kOlmo2Names{"model.layers", kLlamaModelNames, kOlmo2BlockNames};

inline constexpr GgufNames kLlamaNames{"model.layers", kLlamaModelNames, kLlamaBlockNames};

// A block with a mixture of experts where Llama has its MLP, under the names that most families have; and the
// expert of all rows.
inline constexpr std::array<GgufName, 8> kExpertNames{{{"ffn_gate_inp", "mlp.gate"},
                                                       {"ffn_gate_exps", "mlp.experts.*.gate_proj"},
                                                       {"ffn_up_exps", "mlp.experts.*.up_proj"},
                                                       {"ffn_down_exps", "mlp.experts.*.down_proj"},
                                                       {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
                                                       {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
                                                       {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
                                                       {"ffn_down_shexp", "mlp.shared_expert.down_proj"}}};
inline constexpr auto kMixtureBlockNames =
    joined(kAttentionNames, kHeadNormNames,
           std::array<GgufName, 1>{{{"ffn_norm", "post_attention_layernorm"}}}, kExpertNames);

inline constexpr GgufNames kMixtureNames{"model.layers", kLlamaModelNames, kMixtureBlockNames};

// What the converter writes of every model that has no order of its own.
inline constexpr std::array<GgufKey, 11> kQwen3Keys{
    GgufKey::kBlockCount,  GgufKey::kContextLength, GgufKey::kEmbeddingLength, GgufKey::kFeedForwardLength,
    GgufKey::kHeadCount,   GgufKey::kKvHeadCount,   GgufKey::kRopeScaling,     GgufKey::kFrequencyBase,
    GgufKey::kNormEpsilon, GgufKey::kKeyLength,     GgufKey::kFileType};

inline constexpr std::array<GgufKey, 14> kLlamaKeys{
    GgufKey::kBlockCount,        GgufKey::kContextLength, GgufKey::kEmbeddingLength,
    GgufKey::kFeedForwardLength, GgufKey::kHeadCount,     GgufKey::kKvHeadCount,
    GgufKey::kRopeScaling,       GgufKey::kFrequencyBase, GgufKey::kNormEpsilon,
    GgufKey::kKeyLength,         GgufKey::kFileType,      GgufKey::kVocabularySize,
    GgufKey::kTurningDimensions, GgufKey::kWindow};

// Of Ministral 3, and of Mistral in Mistral 3's wrapper.
extern const GgufFamily kMinistral3Gguf;

// Granite's small models have SmolLM2's number of tokens, by which the converter knows them.
inline constexpr GgufVocabulary kLlamaVocabulary{.says_prefix = true, .says_bos_at_size = 49152};

}  // namespace llmq
