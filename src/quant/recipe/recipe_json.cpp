// The resolved recipe of a report or a manifest, read back. What stands there as it would in a recipe file
// goes through the same table of keys; parts whose JSON is another form (schemes, llm-compressor's targets)
// are read here, as strictly.
#include <array>
#include <string_view>

#include "base/error.h"
#include "quant/recipe/recipe.h"

namespace llmq {
namespace {

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
      scheme.activation_bits = small_integer(value, 8, 16, file);
    else if (key == "granularity")
      scheme.granularity = granularity_of(value.as_string(), file);
    else if (key == "type" && value == Json("float8"))
      scheme.weight_type = WeightType::kFloat8;
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

std::vector<std::string> names_of(const Json& list) {
  std::vector<std::string> names;
  for (const Json& item : list.items()) names.push_back(item.as_string());
  return names;
}

// What was not given is left out: null, an empty text, an empty choice of bits.
Json given_only(const Json& json) {
  Json given = Json::object();
  for (const auto& [key, value] : json.members()) {
    if (value.is_null() || value == Json("") || (key == "bits" && value == Json::array())) continue;
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
  for (const char* key : {"source", "notes", "targets", "scheme", "overrides"})
    if (const Json* value = plain.find(key);
        value != nullptr && !(key == std::string_view("scheme") && value->is_string())) {
      taken[key] = *value;
      plain.erase(key);
    }
  Recipe recipe = Recipe::parse(plain.dump(1), file);
  recipe.source = file;
  for (const auto& [key, value] : taken.members()) {
    if (key == "notes") recipe.notes = names_of(value);
    if (key == "targets") recipe.targets = names_of(value);
    if (key == "scheme") recipe.scheme = scheme_of(value, file);
    if (key == "overrides")
      for (const Json& one : value.items())
        recipe.overrides.push_back({one.at("match").as_string(), scheme_of(one.at("scheme"), file)});
  }
  return recipe;
}

}  // namespace

Recipe Recipe::from_json(const Json& json, const std::string& file) {
  try {
    return read(json, file);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kBadInput || !error.detail().file.empty()) throw;
    refuse(file, error.detail().message);
  }
}

}  // namespace llmq
