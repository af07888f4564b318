// The decoders of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and its mixture of experts, with text only.
//
// Their rope has a position in time, in height and in width, and sections of a head's angles that turn by
// each. A text token has one position, three times, so that every angle turns by it and the sections, whether
// one behind another or interleaved, do nothing: it is plain rope. Qwen3-VL adds what the tower saw to the
// first blocks (deepstack), and only at places of an image. Source: Transformers' modeling_qwen2_vl,
// modeling_qwen2_5_vl, modeling_qwen3_vl and modeling_qwen3_vl_moe.
//
// Qwen3-VL's experts are stacked, as published each the transpose of what others have: [experts, hidden, gate
// and up] and [experts, width, hidden]. Transformers 5 may save them as others are; shapes tell which it is.
#include <fmt/format.h>

#include "model/structures/llama_like.h"

namespace llmq {
namespace {

// The three sections are taken out of `rope`, and the type "mrope", which is Transformers' "default".
// They are all angles of the channels that turn.
void take_sections(Json& rope, const ConfigFields& config, const char* key, std::int64_t head_dim,
                   double share) {
  if (!rope.is_object()) return;
  ConfigFields fields(rope, config.file(), config.place(key));
  constexpr const char* kSections = "mrope_section";
  const auto turning = static_cast<std::int64_t>(static_cast<double>(head_dim) *
                                                 fields.number("partial_rotary_factor", {0, 1}, share));
  fields.flag("mrope_interleaved", false);
  if (const Json* sections = fields.find(kSections)) {
    std::int64_t angles = 0;
    const bool three = sections->is_array() && sections->items().size() == 3;
    if (three)
      for (const Json& angle : sections->items())
        angles += angle.is_integer() && angle.as_integer() >= 0 && angle.as_integer() <= head_dim
                      ? angle.as_integer()
                      : head_dim;
    if (!three || angles * 2 != turning)
      fields.unsupported(
          kSections,
          fmt::format("is {}, and a head of {} turns by {} angles", sections->dump(), head_dim, turning / 2),
          "three sections that are all of them turn text as plain rope does");
  }
  for (const char* own : {kSections, "mrope_interleaved"}) rope.erase(own);
  for (const char* kind : {"type", "rope_type"})
    if (const Json* said = rope.find(kind); said != nullptr && *said == Json("mrope")) rope[kind] = "default";
}

void read_qwen2_vl(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  constexpr std::int64_t kFirstWindow = 80;
  const LlamaSizes sizes = read_llama_sizes(config, layers, {32768, 8, 0, 1e-5}, spec);
  spec.ropes = {read_sectioned_rope(config, spec.max_position, sizes.head_dim, {.theta = 1e6})};
  LlamaTraits traits;
  traits.qkv_bias = true;
  config.find("attention_bias");  // no field of this family, as of Qwen2
  config.require_neutral("mlp_bias", false);
  traits.windows = read_qwen_windows(config, spec, kFirstWindow);
  fill_llama(sizes, traits, spec);
}

void read_qwen3_vl(ConfigFields& config, std::int64_t layers, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, layers, {128000, 32, 128}, spec);
  spec.ropes = {read_sectioned_rope(config, spec.max_position, sizes.head_dim, {.theta = 5e5})};
  LlamaTraits traits;
  traits.qkv_bias = traits.o_bias = config.flag("attention_bias", false);
  traits.query_key_norm = true;
  config.require_neutral("mlp_bias", false);
  config.require_neutral("use_sliding_window", false);
  config.require_neutral("sliding_window", nullptr);
  for (const bool sliding : read_layer_types(config, spec))
    if (sliding)
      config.unsupported("layer_types", "names sliding_attention, which this family does not have");
  fill_llama(sizes, traits, spec);
}

void read_qwen3_vl_moe(ConfigFields& config, std::int64_t tensors, ModelSpec& spec) {
  const LlamaSizes sizes = read_llama_sizes(config, tensors, {128000, 16, 0}, spec);
  spec.ropes = {read_sectioned_rope(config, spec.max_position, sizes.head_dim, {.theta = 5e5})};
  LlamaTraits traits;
  traits.qkv_bias = traits.o_bias = config.flag("attention_bias", false);
  traits.query_key_norm = true;
  config.require_neutral("mlp_bias", false);
  config.require_neutral("norm_topk_prob", true);  // of the class, whatever a config says
  traits.mixture = read_qwen_mixture(config, tensors, spec, 60, 4, 1408);
  traits.mixture->normalized = true;
  fill_llama(sizes, traits, spec);
}

std::optional<SlabNames> find_turned_experts(const Json& config, const std::string& tensor) {
  std::optional<SlabNames> found = find_stacked_experts(config, tensor);
  const Json* const text = found ? config.find("text_config") : nullptr;
  if (text == nullptr) return found;
  const Json* const columns = text->find(found->further.empty() ? "moe_intermediate_size" : "hidden_size");
  if (columns != nullptr && columns->is_integer()) found->columns = columns->as_integer();
  return found;
}

}  // namespace

RopeSpec read_sectioned_rope(ConfigFields& config, std::int64_t max_position, std::int64_t head_dim,
                             const RopeDefaults& defaults) {
  Json plain = Json::object();
  for (const char* key : {"rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings",
                          "partial_rotary_factor"})
    if (const Json* said = config.find(key)) plain[key] = *said;
  const double share = defaults.partial ? config.number("partial_rotary_factor", {0, 1}, defaults.share) : 1;
  for (const char* key : {"rope_scaling", "rope_parameters"})
    if (plain.find(key) != nullptr) take_sections(plain[key], config, key, head_dim, share);
  ConfigFields fields(plain, config.file(), config.where());
  return read_rope(fields, max_position, head_dim, defaults);
}

extern const Family kQwen3VlMoeText = {"qwen3_vl_moe_text", "",      false,
                                       read_qwen3_vl_moe,   nullptr, find_turned_experts};
extern const Family kQwen2VlText = {"qwen2_vl_text", "", false, read_qwen2_vl};
extern const Family kQwen25VlText = {"qwen2_5_vl_text", "", false, read_qwen2_vl};
extern const Family kQwen3VlText = {"qwen3_vl_text", "", false, read_qwen3_vl};

}  // namespace llmq
