// What llama.cpp makes of Gemma 4. Sizes that differ between blocks with a window and blocks of full
// attention have keys of their own, or one number for each block. Full attention turns a share of the angles
// of its heads: rope_freqs has 1 for those, and for all others 1e30, by which an angle becomes none. Gate and
// up of the experts stay one tensor, as they are published. Source: llama.cpp's conversion/gemma.py and
// src/models/gemma4.cpp.
#include "model/gguf/gemma4_gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

constexpr auto kGemma4ModelNames = joined(
    kLlamaModelNames, std::array<GgufName, 3>{{{"per_layer_token_embd", "model.embed_tokens_per_layer"},
                                               {"per_layer_model_proj", "model.per_layer_model_projection"},
                                               {"per_layer_proj_norm", "model.per_layer_projection_norm"}}});
constexpr auto kGemma4BlockNames = joined(
    kAttentionNames, kHeadNormNames,
    std::array<GgufName, 18>{
        {{"post_attention_norm", "post_attention_layernorm"},
         {"ffn_norm", "pre_feedforward_layernorm"},
         {"post_ffw_norm", "post_feedforward_layernorm"},
         {"ffn_gate", "mlp.gate_proj"},
         {"ffn_up", "mlp.up_proj"},
         {"ffn_down", "mlp.down_proj"},
         {"post_ffw_norm_1", "post_feedforward_layernorm_1"},
         {"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
         {"post_ffw_norm_2", "post_feedforward_layernorm_2"},
         {"ffn_gate_inp.scale", "router.scale", {}, true},
         {"ffn_gate_inp", "router.proj"},
         {"ffn_down_exps.scale", "router.per_expert_scale", {}, true},
         {.gguf = "ffn_gate_up_exps", .hugging_face = "experts.*.gate_proj", .then = "experts.*.up_proj"},
         {"ffn_down_exps", "experts.*.down_proj"},
         {"inp_gate", "per_layer_input_gate"},
         {"proj", "per_layer_projection"},
         {"post_norm", "post_per_layer_input_norm"},
         {"layer_output_scale.weight", "layer_scalar", {}, true}}});

constexpr std::array<GgufKey, 22> kGemma4Keys{GgufKey::kBlockCount,
                                              GgufKey::kContextLength,
                                              GgufKey::kEmbeddingLength,
                                              GgufKey::kFeedForwardLengths,
                                              GgufKey::kHeadCount,
                                              GgufKey::kKvHeadCounts,
                                              GgufKey::kFrequencyBase,
                                              GgufKey::kWindowFrequencyBase,
                                              GgufKey::kNormEpsilon,
                                              GgufKey::kExpertCount,
                                              GgufKey::kExpertUsedCount,
                                              GgufKey::kFullKeyLength,
                                              GgufKey::kFileType,
                                              GgufKey::kLogitSoftcap,
                                              GgufKey::kWindow,
                                              GgufKey::kSharedKvBlocks,
                                              GgufKey::kEmbeddedWidth,
                                              GgufKey::kWindowPattern,
                                              GgufKey::kWindowKeyLength,
                                              GgufKey::kExpertWidth,
                                              GgufKey::kFullTurningDimensions,
                                              GgufKey::kWindowTurningDimensions};

// Transformers multiplies queries and keys as they are.
std::int64_t gemma4_scalar(std::int64_t, std::int64_t, std::int64_t, std::int64_t) { return 1; }

// "swa" keys, and what those without mean beside them.
void add_heads(const GgufHeader& header, std::int64_t blocks, Json& config) {
  const std::string of_heads = "gemma4.attention.";
  const std::int64_t full = gguf_size(header, of_heads + "key_length"),
                     windowed = gguf_size(header, of_heads + "key_length_swa");
  for (const auto& [key, length] : {std::pair{"value_length", full}, std::pair{"value_length_swa", windowed}})
    if (gguf_size(header, of_heads + key) != length)
      unsupported_gguf(header, of_heads + key, "differs from the key length");
  for (const auto& [key, length] :
       {std::pair{"rope.dimension_count", full}, std::pair{"rope.dimension_count_swa", windowed}})
    if (header.find_integer(fmt::format("gemma4.{}", key)).value_or(length) != length)
      unsupported_gguf(header, fmt::format("gemma4.{}", key), "differs from the key length");
  const std::vector<std::int64_t> kv_heads =
      gguf_sizes_of_blocks(header, kGemma4Gguf.key(GgufKey::kKvHeadCounts), blocks);
  std::optional<std::int64_t> of_kind[2];
  for (std::int64_t i = 0; i < blocks; ++i) {
    const bool sliding =
        config.at("layer_types").items()[static_cast<std::size_t>(i)].as_string() == "sliding_attention";
    std::optional<std::int64_t>& own = of_kind[sliding ? 1 : 0];
    if (own.value_or(kv_heads[static_cast<std::size_t>(i)]) != kv_heads[static_cast<std::size_t>(i)])
      unsupported_gguf(header, kGemma4Gguf.key(GgufKey::kKvHeadCounts),
                       fmt::format("differs between block {} and those of its kind", i));
    own = kv_heads[static_cast<std::size_t>(i)];
  }
  config["head_dim"] = windowed, config["global_head_dim"] = full;
  config["num_key_value_heads"] = of_kind[1].value_or(kv_heads.front());
  config["num_global_key_value_heads"] = of_kind[0].value_or(kv_heads.front());
}

void add_widths(const GgufHeader& header, std::int64_t blocks, Json& config) {
  const std::string key = kGemma4Gguf.key(GgufKey::kFeedForwardLengths);
  const std::vector<std::int64_t> widths = gguf_sizes_of_blocks(header, key, blocks);
  const std::int64_t shared = header.find_integer(kGemma4Gguf.key(GgufKey::kSharedKvBlocks)).value_or(0);
  if (shared < 0 || shared >= blocks)
    bad_gguf(header, kGemma4Gguf.key(GgufKey::kSharedKvBlocks),
             fmt::format("is {} of {} blocks", shared, blocks));
  const bool wide = widths.back() == 2 * widths.front();
  for (std::int64_t i = 0; i < blocks; ++i)
    if (const std::int64_t own = widths[static_cast<std::size_t>(i)];
        own != widths.front() * (wide && i >= blocks - shared ? 2 : 1))
      unsupported_gguf(header, key, fmt::format("is {} for block {}, after {}", own, i, widths.front()));
  config["intermediate_size"] = widths.front();
  config["num_kv_shared_layers"] = shared;
  config["use_double_wide_mlp"] = wide;
}

void add_embedded(const GgufHeader& header, Json& config) {
  const std::string key = kGemma4Gguf.key(GgufKey::kEmbeddedWidth);
  config["hidden_size_per_layer_input"] = header.find_integer(key).value_or(0);
  if (const GgufTensor* const table = find_gguf_tensor(header, "per_layer_token_embd.weight");
      table != nullptr && table->shape.rank() == 2)
    config["vocab_size_per_layer_input"] = table->shape[0];
}

void add_ropes(const GgufHeader& header, Json& config) {
  const Json share = config.at("rope_scaling").is_object()
                         ? config.at("rope_scaling").at("partial_rotary_factor")
                         : Json(1.0);
  const double theta = config.at("rope_theta").as_double();
  config["rope_parameters"] = Json::object(
      {{"full_attention",
        Json::object(
            {{"rope_type", "proportional"}, {"partial_rotary_factor", share}, {"rope_theta", theta}})},
       {"sliding_attention",
        Json::object(
            {{"rope_type", "default"},
             {"rope_theta",
              header.find_number(kGemma4Gguf.key(GgufKey::kWindowFrequencyBase)).value_or(theta)}})}});
  config.erase("rope_scaling"), config.erase("rope_theta");
}

void add_gemma4_gguf(const GgufHeader& header, Json& config) {
  const std::int64_t blocks = config.at("num_hidden_layers").as_integer(), window = gguf_window(header);
  if (window <= 0) bad_gguf(header, kGemma4Gguf.key(GgufKey::kWindow), "is missing");
  config["sliding_window"] = window;
  config["layer_types"] = gguf_layer_types(header, blocks, 6);
  add_heads(header, blocks, config);
  add_widths(header, blocks, config);
  add_embedded(header, config);
  add_ropes(header, config);
  // One kind of block does without a linear of values, all of it.
  std::int64_t full = 0, without = 0;
  const Json::Array& kinds = config.at("layer_types").items();
  for (std::int64_t i = 0; i < blocks - config.at("num_kv_shared_layers").as_integer(); ++i) {
    if (kinds[static_cast<std::size_t>(i)].as_string() != "full_attention") continue;
    ++full;
    without += find_gguf_tensor(header, fmt::format("blk.{}.attn_v.weight", i)) == nullptr ? 1 : 0;
  }
  if (without != 0 && without != full)
    unsupported_gguf(header, "attn_v", "is missing in some blocks of full attention and there in others");
  config["attention_k_eq_v"] = without != 0;
  for (const char* key : {"hidden_act", "hidden_activation"}) config[key] = "gelu_pytorch_tanh";
  config["attention_bias"] = false;
  if (const auto cap = header.find_number(kGemma4Gguf.key(GgufKey::kLogitSoftcap)); cap && *cap != 0)
    config["final_logit_softcapping"] = *cap;
  const bool mixture = header.find_integer(kGemma4Gguf.key(GgufKey::kExpertCount)).value_or(0) != 0;
  config["enable_moe_block"] = mixture;
  if (!mixture) return;
  config["num_experts"] = gguf_size(header, kGemma4Gguf.key(GgufKey::kExpertCount));
  config["top_k_experts"] = gguf_size(header, kGemma4Gguf.key(GgufKey::kExpertUsedCount));
  config["moe_intermediate_size"] = gguf_size(header, kGemma4Gguf.key(GgufKey::kExpertWidth));
}

// Whatever tokenizer.json says of them: so that who reads a chat sees them.
constexpr std::array<const char*, 7> kVisible{"<|channel>",   "<channel|>",       "<|tool_call>",
                                              "<tool_call|>", "<|tool_response>", "<tool_response|>",
                                              "<|\"|>"};

}  // namespace

const GgufFamily kGemma4Gguf = {.architecture = "gemma4",
                                .names = {"model.layers", kGemma4ModelNames, kGemma4BlockNames},
                                .keys = kGemma4Keys,
                                .without_tower = true,
                                .writes_carried = true,
                                .window = GgufWindow::kAlways,
                                .activation = Activation::kGeluTanh,
                                .scaling = GgufScaling::kShare,
                                .scaled_embedding = true,
                                .query_scalar = gemma4_scalar,
                                .experts = GgufExperts::kSumToOne,
                                .dense_too = true,
                                .vocabulary = {.model = "gemma4", .visible = kVisible},
                                .add_config = add_gemma4_gguf};

}  // namespace llmq
