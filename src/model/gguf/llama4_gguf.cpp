// What llama.cpp makes of Llama 4. No key says that three blocks of four turn, see chunks of 8192 positions
// and take the length of heads, nor how queries of the others grow: it knows so by the architecture, and by
// the number of experts that Maverick's 128 take no length. Source: llama.cpp's conversion/llama.py and
// src/models/llama4.cpp.
#include "model/gguf/llama4_gguf.h"

#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

constexpr auto kLlama4BlockNames = joined(
    kAttentionNames, std::array<GgufName, 11>{{{"ffn_norm", "post_attention_layernorm"},
                                               {"ffn_gate", "feed_forward.gate_proj"},
                                               {"ffn_up", "feed_forward.up_proj"},
                                               {"ffn_down", "feed_forward.down_proj"},
                                               {"ffn_gate_inp", "feed_forward.router"},
                                               {"ffn_gate_exps", "feed_forward.experts.*.gate_proj"},
                                               {"ffn_up_exps", "feed_forward.experts.*.up_proj"},
                                               {"ffn_down_exps", "feed_forward.experts.*.down_proj"},
                                               {"ffn_gate_shexp", "feed_forward.shared_expert.gate_proj"},
                                               {"ffn_up_shexp", "feed_forward.shared_expert.up_proj"},
                                               {"ffn_down_shexp", "feed_forward.shared_expert.down_proj"}}});

constexpr std::array<GgufKey, 17> kLlama4Keys{
    GgufKey::kBlockCount,  GgufKey::kContextLength,  GgufKey::kEmbeddingLength,   GgufKey::kFeedForwardLength,
    GgufKey::kHeadCount,   GgufKey::kKvHeadCount,    GgufKey::kRopeScaling,       GgufKey::kFrequencyBase,
    GgufKey::kNormEpsilon, GgufKey::kExpertCount,    GgufKey::kExpertUsedCount,   GgufKey::kKeyLength,
    GgufKey::kFileType,    GgufKey::kVocabularySize, GgufKey::kTurningDimensions, GgufKey::kMixtureInterval,
    GgufKey::kExpertWidth};

constexpr GgufChunks kLlama4Chunks{
    .size = 8192, .growth = 0.1, .growth_length = 8192, .growth_start = 1, .lengths_but_of = 128};

void add_llama4_gguf(const GgufHeader& header, Json& config) {
  add_gguf_experts(header, "num_local_experts", config);
  config["intermediate_size_mlp"] = Json(config.at("intermediate_size"));  // a copy: the object grows
  config["intermediate_size"] = gguf_size(header, kLlama4Gguf.key(GgufKey::kExpertWidth));
  config["interleave_moe_layer_step"] = gguf_size(header, kLlama4Gguf.key(GgufKey::kMixtureInterval));
  config["use_qk_norm"] = config.at("num_local_experts").as_integer() != kLlama4Chunks.lengths_but_of;
  config["attention_chunk_size"] = kLlama4Chunks.size;
  config["attn_temperature_tuning"] = true;
  config["floor_scale"] = kLlama4Chunks.growth_length, config["attn_scale"] = kLlama4Chunks.growth;
  config["attention_bias"] = has_gguf_biases(header, {"attn_q", "attn_k", "attn_v"});
  // 0 where all blocks see everything, which no published model has.
  const std::string window = "llama4.attention.sliding_window";
  if (header.find(window) != nullptr)
    unsupported_gguf(header, window, "is there; only models with chunks in three blocks of four are read");
}

}  // namespace

const GgufFamily kLlama4Gguf = {.architecture = "llama4",
                                .names = {"model.layers", kLlamaModelNames, kLlama4BlockNames},
                                .keys = kLlama4Keys,
                                .turning_period = 4,
                                .chunks = &kLlama4Chunks,
                                .without_tower = true,
                                .experts = GgufExperts::kAsTheyAre,
                                .score = RouterScore::kSigmoidOfChosen,
                                .add_config = add_llama4_gguf};

}  // namespace llmq
