// SmolLM3: Llama of which some blocks, every fourth where the config has no list, turn neither queries nor
// keys by their position. Source: Transformers' configuration_smollm3 and modeling_smollm3.
#include <fmt/format.h>

#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

constexpr double kSmolLm3Theta = 2e6;  // where rope_theta is absent

// By layer_types; without them the blocks that do not turn have the window.
std::vector<std::int64_t> read_smollm3_windows(ConfigFields& config, const std::vector<bool>& turning,
                                               const ModelSpec& spec) {
  const bool use = config.flag("use_sliding_window", false);
  const std::int64_t size = config.integer("sliding_window", {1, kPositionsRange.most}, 0);
  const std::vector<bool> types = read_layer_types(config, spec);
  std::vector<std::int64_t> windows;
  for (std::size_t i = 0; i < spec.blocks.size(); ++i) {
    const bool sliding = types.empty() ? use && size != 0 && !turning[i] : types[i];
    if (sliding && (!use || size == 0))
      config.bad("layer_types",
                 fmt::format("asks for sliding_attention in block {} without a sliding_window in use", i),
                 "set use_sliding_window to true and sliding_window to its size");
    windows.push_back(sliding ? size : 0);
  }
  return windows;
}

void read_smollm3(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, layers, {32768, 4, 0}, spec);
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim, {.theta = kSmolLm3Theta})};
  LlamaTraits traits;
  traits.qkv_bias = traits.o_bias = config.flag("attention_bias", false);
  traits.mlp_bias = config.flag("mlp_bias", false);
  config.find("max_window_layers");  // stands in the files of the model and is read by nobody
  const std::vector<bool> turning = read_turning_blocks(config, spec.blocks.size());
  for (const bool turns : turning) traits.turns.push_back({0, turns ? spec.ropes.front().dims : 0});
  traits.windows = read_smollm3_windows(config, turning, spec);
  fill_llama(sizes, traits, spec);
}

constexpr std::array<GgufKey, 13> kSmolLm3Keys{
    GgufKey::kBlockCount,        GgufKey::kContextLength, GgufKey::kEmbeddingLength,
    GgufKey::kFeedForwardLength, GgufKey::kHeadCount,     GgufKey::kKvHeadCount,
    GgufKey::kRopeScaling,       GgufKey::kFrequencyBase, GgufKey::kNormEpsilon,
    GgufKey::kStatedKeyLength,   GgufKey::kFileType,      GgufKey::kVocabularySize,
    GgufKey::kTurningDimensions};

// Every fourth block does not turn, which no key says.
void add_smollm3_gguf(const GgufHeader& header, Json& config) {
  config["attention_bias"] = has_gguf_biases(header, {"attn_q", "attn_k", "attn_v"});
  config["mlp_bias"] = false;
  config["no_rope_layer_interval"] = kUsualTurningPeriod;
  config["use_sliding_window"] = false;
}

constexpr GgufFamily kSmolLm3Gguf = {.architecture = "smollm3",
                                     .names = kLlamaNames,
                                     .keys = kSmolLm3Keys,
                                     .turns_neighbours = true,
                                     .turning_period = kUsualTurningPeriod,
                                     .vocabulary = kLlamaVocabulary,
                                     .add_config = add_smollm3_gguf};

}  // namespace

extern const Family kSmolLm3Family = {"smollm3", "SmolLM3ForCausalLM", true, read_smollm3, &kSmolLm3Gguf};

}  // namespace llmq
