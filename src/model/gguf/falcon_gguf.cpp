// What llama.cpp makes of Falcon: of a linear that has the rows of each KV head's q, k and v together, all
// rows of q, then those of k, then those of v. The norm before the MLP, or before both mixers, is attn_norm;
// attn_norm_2 is that before attention, where it has one of its own. The converter says 2048
// positions whatever there are, and no base of the rope, which llama.cpp reads: Falcon2 11B has both
// otherwise. Source: llama.cpp's conversion/falcon.py and
// src/models/falcon.cpp.
#include "model/gguf/falcon_gguf.h"

#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

constexpr const char* kNormOfAttention = "attn_norm_2";

constexpr std::array<GgufName, 3> kFalconModelNames{{{"token_embd", "transformer.word_embeddings"},
                                                     {"output_norm", "transformer.ln_f"},
                                                     {"output", "lm_head"}}};
constexpr std::array<GgufName, 7> kFalconBlockNames{
    {{.gguf = "attn_norm", .hugging_face = "ln_mlp", .beside = kNormOfAttention},
     {"attn_norm", "input_layernorm"},
     {kNormOfAttention, "ln_attn"},
     {"attn_qkv", "self_attention.query_key_value"},
     {"attn_output", "self_attention.dense"},
     {"ffn_up", "mlp.dense_h_to_4h"},
     {"ffn_down", "mlp.dense_4h_to_h"}}};

constexpr std::array<GgufKey, 10> kFalconKeys{GgufKey::kContextLength,        GgufKey::kTensorLayout,
                                              GgufKey::kEmbeddingLength,      GgufKey::kFeedForwardLength,
                                              GgufKey::kBlockCount,           GgufKey::kHeadCount,
                                              GgufKey::kKvHeadCount,          GgufKey::kLayerNormEpsilon,
                                              GgufKey::kUnusualFrequencyBase, GgufKey::kFileType};

// Of [queries | key | value] of one KV head after another.
std::optional<GgufPart> part_of_falcon(std::string_view name, const GgufWidths& widths) {
  if (name != "attn_qkv.weight" || widths.groups < 2) return std::nullopt;
  const std::int64_t dim = widths.head_dim, queries = widths.group_queries * dim, each = queries + 2 * dim;
  const Shape shape{widths.groups * each, widths.hidden};
  const auto run = [&](std::int64_t first, std::int64_t width) {
    return GgufOrder::Run{first, {1, widths.groups, width}, {0, each, 1}};
  };
  return GgufPart{shape, shape, {{run(0, queries), run(queries, dim), run(queries + dim, dim)}}, {}};
}

// Under Falcon's own names.
void add_falcon_gguf(const GgufHeader& header, Json& config) {
  const std::int64_t kv_heads = config.at("num_key_value_heads").as_integer();
  if (config.at("head_dim").as_integer() * header.integer(kFalconGguf.key(GgufKey::kHeadCount)) !=
      config.at("hidden_size").as_integer())
    unsupported_gguf(header, "falcon.attention.key_length",
                     "is another width than Falcon's heads have, that of the model over their number");
  const bool two_norms = find_gguf_tensor(header, "blk.0.attn_norm_2.weight") != nullptr;
  config["ffn_hidden_size"] = Json(config.at("intermediate_size"));  // a copy: the object grows
  config["layer_norm_epsilon"] = header.number(kFalconGguf.key(GgufKey::kLayerNormEpsilon));
  config["num_kv_heads"] = kv_heads;
  config["new_decoder_architecture"] = two_norms || kv_heads > 1;
  config["num_ln_in_parallel_attn"] = two_norms ? 2 : 1;
  config["multi_query"] = true, config["parallel_attn"] = true, config["alibi"] = false;
  config["bias"] = false, config["activation"] = "gelu";
  for (const char* const key : {"intermediate_size", "num_key_value_heads", "head_dim", "hidden_act"})
    config.erase(key);
}

}  // namespace

const GgufFamily kFalconGguf = {.architecture = "falcon",
                                .names = {"transformer.h", kFalconModelNames, kFalconBlockNames},
                                .keys = kFalconKeys,
                                .part = part_of_falcon,
                                .activation = Activation::kGelu,
                                .types = GgufTypes::kFalcon,
                                .add_config = add_falcon_gguf};

}  // namespace llmq
