// Every family by its one line here, and what all of them read alike.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "model/families/family.h"

namespace llmq {

extern const Family kLlamaFamily, kMistralFamily, kQwen2Family, kQwen3Family, kPhi3Family, kOptFamily,
    kOlmo2Family, kOlmo3Family, kSmolLm3Family, kSeedOssFamily, kStarcoder2Family, kQwen3MoeFamily,
    kQwen2MoeFamily, kMixtralFamily, kOlmoeFamily, kGraniteFamily, kGraniteMoeFamily, kMinistral3Family,
    kGlm4Family, kCohereFamily, kCohere2Family, kFalconFamily, kGemma3Family, kQwen3NextFamily, kQwen35Text,
    kQwen35MoeText, kGemma2Family, kGptOssFamily, kGlm4MoeFamily, kMiniMaxM2Family, kGemma4Family,
    kDeepseekV2Family, kDeepseekV3Family, kKimiK2Family, kGlm4MoeLiteFamily, kLlama4Family, kErnieFamily;

std::span<const Family* const> families() {
  static constexpr const Family* kAll[] = {
      &kLlamaFamily,      &kMistralFamily,    &kQwen2Family,      &kQwen3Family,     &kPhi3Family,
      &kOptFamily,        &kOlmo2Family,      &kOlmo3Family,      &kSmolLm3Family,   &kSeedOssFamily,
      &kStarcoder2Family, &kQwen3MoeFamily,   &kQwen2MoeFamily,   &kMixtralFamily,   &kOlmoeFamily,
      &kGraniteFamily,    &kGraniteMoeFamily, &kMinistral3Family, &kGlm4Family,      &kCohereFamily,
      &kCohere2Family,    &kFalconFamily,     &kGemma3Family,     &kQwen3NextFamily, &kQwen35Text,
      &kQwen35MoeText,    &kGemma2Family,     &kGptOssFamily,     &kGlm4MoeFamily,   &kMiniMaxM2Family,
      &kGemma4Family,     &kDeepseekV2Family, &kDeepseekV3Family, &kKimiK2Family,    &kGlm4MoeLiteFamily,
      &kLlama4Family,     &kErnieFamily};
  return kAll;
}

bool is_same_in_mlx(std::string_view model_type) {
  static constexpr std::string_view kSame[] = {"llama",   "mistral",    "ministral3", "qwen2",       "qwen3",
                                               "phi3",    "olmo2",      "olmo3",      "smollm3",     "glm4",
                                               "granite", "seed_oss",   "gemma2",     "gemma3_text", "cohere",
                                               "cohere2", "starcoder2", "ernie4_5"};
  return std::find(std::begin(kSame), std::end(kSame), model_type) != std::end(kSame);
}

void read_common_sizes(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  constexpr const char* kLayers = "num_hidden_layers";
  spec.hidden_size = config.integer("hidden_size", kWidthRange);
  spec.vocab_size = config.integer("vocab_size", kWidthRange);
  const std::int64_t asked = config.integer(kLayers, kLayersRange);
  if (asked > layers)
    config.bad(kLayers, fmt::format("is {}, but the checkpoint has {} tensors in all", asked, layers));
  spec.blocks.resize(static_cast<std::size_t>(asked));
}

}  // namespace llmq
