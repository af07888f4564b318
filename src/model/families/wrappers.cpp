// Every wrapper by one entry here. Source: Transformers' configuration_<model_type> and the names that its
// conversion_mapping.py and vLLM's hf_to_vllm_mapper have for the parts.
#include "model/families/wrapper.h"

#include <algorithm>

namespace llmq {

extern const Family kLlamaFamily, kMistralFamily, kMinistral3Family, kQwen2Family, kQwen3Family, kQwen2VlText,
    kQwen25VlText, kQwen3VlText, kQwen3VlMoeText, kQwen35Text, kQwen35MoeText, kGemma3Family, kGemma4Family,
    kLlama4Family;

namespace {

// Image tokens that a text holds are looked up as any other token is.
constexpr const char* kQwenImageKeys[] = {"image_token_id",        "video_token_id",      "vision_token_id",
                                          "vision_start_token_id", "vision_end_token_id", "vision_config",
                                          "language_model_only"};
constexpr const char* kImageKeys[] = {"image_token_id",
                                      "image_token_index",
                                      "image_seq_length",
                                      "ignore_index",
                                      "vision_config",
                                      "vision_feature_layer",
                                      "vision_feature_select_strategy",
                                      "projector_hidden_act",
                                      "multimodal_projector_bias",
                                      "spatial_merge_size",
                                      "downsample_ratio"};
constexpr const char* kGemmaImageKeys[] = {"image_token_index",   "image_token_id", "boi_token_index",
                                           "eoi_token_index",     "boi_token_id",   "eoi_token_id",
                                           "mm_tokens_per_image", "vision_config"};
constexpr const char* kGemma4ImageKeys[] = {"boi_token_id",
                                            "eoi_token_id",
                                            "image_token_id",
                                            "video_token_id",
                                            "boa_token_id",
                                            "eoa_token_id",
                                            "eoa_token_index",
                                            "audio_token_id",
                                            "vision_config",
                                            "audio_config",
                                            "vision_soft_tokens_per_image"};
constexpr const char* kLlama4ImageKeys[] = {"image_token_index", "image_token_id",  "boi_token_index",
                                            "boi_token_id",      "eoi_token_index", "eoi_token_id",
                                            "vision_config"};
constexpr const char* kVisual[] = {"visual"};
constexpr const char* kTowerAndEmbedder[] = {"vision_tower", "embed_vision"};
constexpr const char* kAudioTowerAndEmbedder[] = {"audio_tower", "embed_audio"};
constexpr const char* kModelAndProjector[] = {"vision_model", "multi_modal_projector"};
constexpr const char* kTowerAndProjector[] = {"vision_tower", "multi_modal_projector"};

constexpr const Family* kOfQwen2Vl[] = {&kQwen2VlText};
constexpr const Family* kOfQwen25Vl[] = {&kQwen25VlText};
constexpr const Family* kOfQwen3Vl[] = {&kQwen3VlText};
constexpr const Family* kOfQwen3VlMoe[] = {&kQwen3VlMoeText};
constexpr const Family* kOfQwen35[] = {&kQwen35Text};
constexpr const Family* kOfQwen35Moe[] = {&kQwen35MoeText};
constexpr const Family* kOfMistral3[] = {&kMistralFamily, &kMinistral3Family};
constexpr const Family* kOfGemma3[] = {&kGemma3Family};
constexpr const Family* kOfGemma4[] = {&kGemma4Family};
constexpr const Family* kOfLlama4[] = {&kLlama4Family};
constexpr const Family* kAnyDense[] = {&kLlamaFamily, &kMistralFamily, &kQwen2Family, &kQwen3Family};
constexpr const Family* kOfInternVl[] = {&kQwen2Family, &kQwen3Family, &kLlamaFamily};

constexpr Wrapper kQwen2Vl = {.model_type = "qwen2_vl",
                              .architecture = "Qwen2VLForConditionalGeneration",
                              .decoders = kOfQwen2Vl,
                              .parts = kVisual,
                              .image_keys = kQwenImageKeys,
                              .flat = true};
constexpr Wrapper kQwen25Vl = {.model_type = "qwen2_5_vl",
                               .architecture = "Qwen2_5_VLForConditionalGeneration",
                               .decoders = kOfQwen25Vl,
                               .parts = kVisual,
                               .image_keys = kQwenImageKeys,
                               .flat = true};
constexpr Wrapper kQwen3Vl = {.model_type = "qwen3_vl",
                              .architecture = "Qwen3VLForConditionalGeneration",
                              .decoders = kOfQwen3Vl,
                              .parts = kVisual,
                              .image_keys = kQwenImageKeys};
constexpr Wrapper kQwen3VlMoe = {.model_type = "qwen3_vl_moe",
                                 .architecture = "Qwen3VLMoeForConditionalGeneration",
                                 .decoders = kOfQwen3VlMoe,
                                 .parts = kVisual,
                                 .image_keys = kQwenImageKeys,
                                 .ties_without_head = true};
constexpr Wrapper kQwen35 = {.model_type = "qwen3_5",
                             .architecture = "Qwen3_5ForConditionalGeneration",
                             .decoders = kOfQwen35,
                             .parts = kVisual,
                             .image_keys = kQwenImageKeys};
constexpr Wrapper kQwen35Moe = {.model_type = "qwen3_5_moe",
                                .architecture = "Qwen3_5MoeForConditionalGeneration",
                                .decoders = kOfQwen35Moe,
                                .parts = kVisual,
                                .image_keys = kQwenImageKeys};
constexpr Wrapper kMistral3 = {.model_type = "mistral3",
                               .architecture = "Mistral3ForConditionalGeneration",
                               .decoders = kOfMistral3,
                               .parts = kTowerAndProjector,
                               .image_keys = kImageKeys,
                               .ties_without_head = true};
constexpr Wrapper kLlava = {.model_type = "llava",
                            .architecture = "LlavaForConditionalGeneration",
                            .decoders = kAnyDense,
                            .parts = kTowerAndProjector,
                            .image_keys = kImageKeys};
constexpr Wrapper kInternVl = {.model_type = "internvl",
                               .architecture = "InternVLForConditionalGeneration",
                               .decoders = kOfInternVl,
                               .parts = kTowerAndProjector,
                               .image_keys = kImageKeys,
                               .ties_without_head = true};
// Without images attention is causal, as the decoder's is.
constexpr Wrapper kGemma3 = {.model_type = "gemma3",
                             .architecture = "Gemma3ForConditionalGeneration",
                             .decoders = kOfGemma3,
                             .parts = kTowerAndProjector,
                             .image_keys = kGemmaImageKeys,
                             .ties_without_head = true};
constexpr Wrapper kGemma4 = {.model_type = "gemma4",
                             .architecture = "Gemma4ForConditionalGeneration",
                             .decoders = kOfGemma4,
                             .parts = kTowerAndEmbedder,
                             .image_keys = kGemma4ImageKeys,
                             .ties_without_head = true,
                             .further = {"audio_config", kAudioTowerAndEmbedder}};

constexpr Wrapper kLlama4 = {.model_type = "llama4",
                             .architecture = "Llama4ForConditionalGeneration",
                             .decoders = kOfLlama4,
                             .parts = kModelAndProjector,
                             .image_keys = kLlama4ImageKeys};

}  // namespace

std::span<const Wrapper* const> wrappers() {
  static constexpr const Wrapper* kAll[] = {&kQwen2Vl,  &kQwen25Vl,  &kQwen3Vl,  &kQwen3VlMoe,
                                            &kQwen35,   &kQwen35Moe, &kMistral3, &kLlava,
                                            &kInternVl, &kGemma3,    &kGemma4,   &kLlama4};
  return kAll;
}

const Wrapper* find_wrapper(std::string_view model_type) {
  const auto all = wrappers();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const Wrapper* wrapper) { return model_type == wrapper->model_type; });
  return found == all.end() ? nullptr : *found;
}

const Family* wrapped_family(const Wrapper& wrapper, const Json& config) {
  const Json* const text = config.find("text_config");
  const Json* const type = text == nullptr ? nullptr : text->find("model_type");
  if (type == nullptr || type->is_null()) return wrapper.decoders.front();
  for (const Family* const family : wrapper.decoders)
    if (type->is_string() && type->as_string() == family->model_type) return family;
  return nullptr;
}

}  // namespace llmq
