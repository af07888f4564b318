// Ministral 3: Mistral with yarn whose queries grow with their position, so that attention stays sharp over
// long contexts: q (1 + beta ln(1 + floor(position / original_max_position_embeddings))). Source:
// Transformers' configuration_ministral3 and modeling_ministral3.
//
// A turn is linear, so queries turn by a table of their own that has the factor in it.
//
// As GGUF Mistral Small 3 is of the same architecture: without yarn, and its queries do not grow.
#include "model/gguf/gguf_fields.h"
#include "model/structures/llama_like.h"
#include "model/structures/llama_like_gguf.h"

namespace llmq {
namespace {

void read_ministral3(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  const LlamaSizes sizes =
      read_llama_sizes(config, layers, {262144, 8, config.is_null("head_dim") ? 0 : 128, 1e-5}, spec);
  if (config.find("rope_parameters") == nullptr && config.find("rope_scaling") == nullptr)
    config.bad("rope_parameters", "is missing", "Ministral 3's is a yarn of factor 16 with theta 1000000");
  spec.ropes = {read_rope(config, spec.max_position, sizes.head_dim, {.growth = true})};
  config.require_neutral("attention_bias", false);
  config.require_neutral("mlp_bias", false);
  const std::int64_t window = config.integer("sliding_window", kPositionsRange, 0);
  for (const bool sliding : read_layer_types(config, spec))
    if (sliding != (window != 0))
      config.unsupported("layer_types", "mixes full and sliding attention, which this family does not do");
  LlamaTraits traits;
  traits.windows.assign(spec.blocks.size(), window);
  if (const RopeSpec of_queries = spec.ropes.front(); of_queries.growth != 0) {
    spec.ropes.front().growth = 0;
    spec.ropes.push_back(of_queries);
    traits.query_table = 1;
  }
  fill_llama(sizes, traits, spec);
}

constexpr std::array<GgufKey, 15> kMinistral3Keys{
    GgufKey::kBlockCount,        GgufKey::kContextLength, GgufKey::kEmbeddingLength,
    GgufKey::kFeedForwardLength, GgufKey::kHeadCount,     GgufKey::kKvHeadCount,
    GgufKey::kRopeScaling,       GgufKey::kFrequencyBase, GgufKey::kNormEpsilon,
    GgufKey::kKeyLength,         GgufKey::kFileType,      GgufKey::kVocabularySize,
    GgufKey::kTurningDimensions, GgufKey::kYarnDivisor,   GgufKey::kQueryGrowth};

// Transformers takes its default, a yarn, where rope_parameters are missing.
void add_ministral3_gguf(const GgufHeader& header, Json& config) {
  const Json scaling = config.at("rope_scaling");
  Json rope = scaling.is_null() ? Json::object({{"rope_type", "default"}}) : scaling;
  rope["rope_theta"] = config.at("rope_theta");
  if (const auto growth = header.find_number(kMinistral3Gguf.key(GgufKey::kQueryGrowth));
      growth && *growth != 0) {
    if (rope.find("original_max_position_embeddings") == nullptr)
      bad_gguf(header, kMinistral3Gguf.key(GgufKey::kQueryGrowth),
               "is there without rope.scaling.original_context_length, in which queries grow");
    rope["llama_4_scaling_beta"] = *growth;
  }
  config.erase("rope_scaling"), config.erase("rope_theta");
  config["rope_parameters"] = rope;
  config["sliding_window"] = Json();
  refuse_gguf_biases(header, "Ministral 3");
}

}  // namespace

extern const GgufFamily kMinistral3Gguf = {.architecture = "mistral3",
                                           .names = kLlamaNames,
                                           .keys = kMinistral3Keys,
                                           .turns_neighbours = true,
                                           .without_tower = true,
                                           .vocabulary = kLlamaVocabulary,
                                           .add_config = add_ministral3_gguf};
extern const Family kMinistral3Family = {"ministral3", "Ministral3ForCausalLM", false, read_ministral3,
                                         &kMinistral3Gguf};

}  // namespace llmq
