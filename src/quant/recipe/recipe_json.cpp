// The resolved recipe as a report or a manifest holds it, and read back from there. What stands there as it
// would in a recipe file goes through the same table of keys; parts whose JSON is another form (schemes,
// llm-compressor's targets) are read here, as strictly.
#include <array>
#include <string_view>

#include "base/error.h"
#include "export/formats/output_format.h"
#include "export/gguf/type_mix.h"
#include "quant/recipe/option_words.h"
#include "quant/recipe/recipe.h"
#include "quant/recipe/yaml_fields.h"

namespace llmq {
namespace {

const char* duo_text(AwqOptions::Duo duo) {
  return duo == AwqOptions::Duo::kBoth ? "both" : duo == AwqOptions::Duo::kYes ? "true" : "false";
}

Json scheme_json(const SchemeRequest& s) {
  Json json = Json::object({{"bits", Json(s.bits)}, {"activation_bits", Json(s.activation_bits)}});
  if (s.granularity)
    json["granularity"] = Json(*s.granularity == Granularity::kGroup     ? "group"
                               : *s.granularity == Granularity::kChannel ? "channel"
                               : *s.granularity == Granularity::kBlock   ? "block"
                                                                         : "tensor");
  if (s.weight_type == WeightType::kFloat8) json["type"] = Json("float8");
  if (s.weight_type == WeightType::kFloat4) json["type"] = Json("float4");
  if (s.activation_bits != 16) json["dynamic"] = Json(!s.static_activations);
  if (s.group_size) json["group_size"] = Json(*s.group_size);
  if (s.symmetric) json["symmetric"] = Json(*s.symmetric);
  return json;
}

Json asked_json(const std::optional<SchemeRequest>& scheme) {
  return scheme ? scheme_json(*scheme) : Json(kDenseWord);
}

Json evaluate_json(const EvaluateRequest& e) {
  Json json = Json::object({{"text", Json(e.text)}});
  if (e.max_ppl) json["max_ppl"] = Json(*e.max_ppl);
  if (e.max_delta_ppl) json["max_delta_ppl"] = Json(*e.max_delta_ppl);
  if (e.max_kl) json["max_kl"] = Json(*e.max_kl);
  json["max_windows"] = Json(e.max_windows);
  return json;
}

[[noreturn]] void refuse(const std::string& file, const std::string& message) {
  fail(ErrorKind::kBadInput, {message, file, "recipe", {}});
}

int small_integer(const Json& value, int low, int high, const std::string& file) {
  const std::int64_t number = value.as_integer();
  if (number < low || number > high)
    refuse(file, fmt::format("{} is not within {} .. {}", number, low, high));
  return static_cast<int>(number);
}

Granularity granularity_of(const std::string& word, const std::string& file) {
  constexpr std::array<std::pair<std::string_view, Granularity>, 4> kWords = {
      {{"group", Granularity::kGroup},
       {"channel", Granularity::kChannel},
       {"tensor", Granularity::kTensor},
       {"block", Granularity::kBlock}}};
  for (const auto& [known, granularity] : kWords)
    if (word == known) return granularity;
  refuse(file, "'" + word + "' is not a granularity");
}

SchemeRequest scheme_of(const Json& json, const std::string& file) {
  SchemeRequest scheme;
  for (const auto& [key, value] : json.members()) {
    if (key == "bits")
      scheme.bits = small_integer(value, 2, 8, file);
    else if (key == "activation_bits")
      scheme.activation_bits = small_integer(value, 4, 16, file);
    else if (key == "granularity")
      scheme.granularity = granularity_of(value.as_string(), file);
    else if (key == "type" && value == Json("float8"))
      scheme.weight_type = WeightType::kFloat8;
    else if (key == "type" && value == Json("float4"))
      scheme.weight_type = WeightType::kFloat4;
    else if (key == "dynamic")
      scheme.static_activations = !value.as_bool();
    else if (key == "group_size")
      scheme.group_size = small_integer(value, 1, 1 << 20, file);
    else if (key == "symmetric")
      scheme.symmetric = value.as_bool();
    else
      refuse(file, "a scheme's '" + key + "' is not known");
  }
  return scheme;
}

std::optional<SchemeRequest> scheme_or_dense_of(const Json& json, const std::string& file) {
  if (json == Json(kDenseWord)) return std::nullopt;
  return scheme_of(json, file);
}

SchemeOverride override_of(const Json& json, const std::string& file) {
  SchemeOverride asked{json.at("match").as_string(), std::nullopt};
  if (json.at("scheme").is_string())
    read_override(Yaml::parse(json.at("scheme").dump(), file), asked);
  else
    asked.scheme = scheme_of(json.at("scheme"), file);
  return asked;
}

std::vector<std::string> names_of(const Json& list) {
  std::vector<std::string> names;
  for (const Json& item : list.items()) names.push_back(item.as_string());
  return names;
}

// What was not given is left out: null, an empty text, an empty choice of bits.
Json given_only(const Json& json) {
  Json given = Json::object();
  for (const auto& [key, value] : json.members()) {
    if (value.is_null() || value == Json("")) continue;
    if ((key == "bits" || key == "schemes") && value == Json::array()) continue;
    if (key == "duo_scaling" && value != Json("both"))
      given[key] = value == Json("true");
    else
      given[key] = value.is_object() ? given_only(value) : value;
  }
  return given;
}

Recipe read(const Json& json, const std::string& file) {
  Json plain = given_only(json);
  Json taken = Json::object();
  for (const char* key : {"source", "notes", "targets", "scheme", "vision", "overrides"})
    if (const Json* value = plain.find(key);
        value != nullptr && !(key == std::string_view("scheme") && value->is_string())) {
      taken[key] = *value;
      plain.erase(key);
    }
  if (const Json* mixed = plain.find("mixed"); mixed != nullptr && mixed->find("schemes") != nullptr) {
    taken["schemes"] = mixed->at("schemes");
    plain["mixed"].erase("schemes");
  }
  Recipe recipe = Recipe::parse(plain.dump(1), file);
  recipe.source = file;
  for (const auto& [key, value] : taken.members()) {
    if (key == "notes") recipe.notes = names_of(value);
    if (key == "targets") recipe.targets = names_of(value);
    if (key == "scheme") recipe.scheme = scheme_of(value, file);
    if (key == "vision") recipe.vision = scheme_of(value, file);
    if (key == "schemes")
      for (const Json& one : value.items()) recipe.mixed.schemes.push_back(scheme_or_dense_of(one, file));
    if (key == "overrides")
      for (const Json& one : value.items()) recipe.overrides.push_back(override_of(one, file));
  }
  return recipe;
}

}  // namespace

Json Recipe::to_json() const {
  Json overrides_json = Json::array();
  for (const SchemeOverride& o : overrides)
    overrides_json.push_back(
        Json::object({{"match", Json(o.match)},
                      {"scheme", o.gguf_type && format == kGgufFormat ? gguf_tensor_type_name(*o.gguf_type)
                                                                      : asked_json(o.scheme)}}));
  Json mixed_bits = Json::array();
  for (const int bits : mixed.bits) mixed_bits.push_back(Json(bits));
  Json mixed_schemes = Json::array();
  for (const std::optional<SchemeRequest>& one : mixed.schemes) mixed_schemes.push_back(asked_json(one));
  Json json = Json::object({
      {"version", Json(1)},
      {"source", Json(source)},
      {"model", Json(model)},
      {"adapter", Json(adapter)},
      {"output", Json(output)},
      {"shard_bytes", shard_bytes ? Json(*shard_bytes) : Json()},
      {"method", text_list(methods)},
      {"scheme", scheme_is_gguf ? Json(gguf.type)
                 : scheme       ? scheme_json(*scheme)
                                : Json()},
      {"format", Json(format)},
      {"calibration", Json::object({{"text", text_list(calibration.text)},
                                    {"samples", Json(calibration.samples)},
                                    {"sequence_length", Json(calibration.sequence_length)},
                                    {"seed", Json(calibration.seed)},
                                    {"shuffle", Json(calibration.shuffle)},
                                    {"chat_template", Json(calibration.chat_template)}})},
      {"rotate", Json::object({{"value", Json(rotates_values ? "hadamard" : "none")}})},
      {"kv_cache",
       kv_cache ? Json::object({{"dtype", Json(std::string(kKvCacheTypes.text(*kv_cache)))}}) : Json()},
      {"targets", text_list(targets)},
      {"ignore", text_list(ignore)},
      {"overrides", overrides_json},
      {"vision", vision ? scheme_json(*vision) : Json()},
      {"target_bits", target_bits ? Json(*target_bits) : Json()},
      {"mixed",
       Json::object({{"bits", mixed_bits}, {"schemes", mixed_schemes}, {"samples", Json(mixed.samples)}})},
      {"awq", Json::object({{"grid", Json(awq.grid)},
                            {"duo_scaling", Json(duo_text(awq.duo_scaling))},
                            {"clip", Json(awq.clip)},
                            {"salient_fp16", Json(awq.salient_fp16)},
                            {"loss", Json("gram")}})},
      {"gptq", Json::object({{"damp", Json(gptq.damp)},
                             {"order", Json(std::string(kOrders.text(gptq.order)))},
                             {"scale_search", Json(std::string(kSearches.text(gptq.scale_search)))},
                             {"full_range", Json(gptq.full_range)},
                             {"refit_scales", Json(gptq.refit_scales)},
                             {"retry_scales", Json(gptq.retry_scales)},
                             {"descent_sweeps", gptq.descent_sweeps ? Json(*gptq.descent_sweeps) : Json()},
                             {"upstream_share", gptq.upstream_share ? Json(*gptq.upstream_share) : Json()}})},
      {"floats", Json::object({{"scales", Json(floats.search ? "search" : "minmax")}})},
      {"gguf", Json::object({{"importance", Json(gguf.importance)},
                             {"search", Json(gguf.search)},
                             {"imatrix_out", Json(gguf.imatrix_out)}})},
      {"smoothquant",
       Json::object({{"alpha", smoothquant.alpha ? Json(*smoothquant.alpha) : Json("search")}})},
      {"activations", Json::object({{"range", Json(activations.whole ? "max" : "percentile")},
                                    {"percentile", Json(activations.percentile)}})},
      {"portable", Json(portable)},
      {"evaluate", evaluate ? evaluate_json(*evaluate) : Json()},
      {"base_model", Json(card.base_model)},
      {"license", Json(card.license)},
      {"datasets", card.datasets ? text_list(*card.datasets) : Json()},
      {"quantized_by", Json(card.quantized_by)},
      {"notes", text_list(notes)},
  });
  return json;
}

Recipe Recipe::from_json(const Json& json, const std::string& file) {
  try {
    return read(json, file);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kBadInput || !error.detail().file.empty()) throw;
    refuse(file, error.detail().message);
  }
}

}  // namespace llmq
