// Bytes choose modifiers, their keys and values, as quant/recipe/llmcompressor_keys.h lists them: recipes of
// llm-compressor's dialect that are valid YAML, which random text seldom is. Each is an Error at a line of
// the file, or a recipe with a method and a scheme that reads back from a report as it was; what is not
// followed is noted with its line.
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "quant/recipe/llmcompressor_keys.h"
#include "quant/recipe/recipe.h"

namespace {

using namespace llmq;
using llmcompressor::KeyRow;
using llmcompressor::ModifierRow;
using llmcompressor::Place;

constexpr const char* kValues[] = {"null",
                                   "true",
                                   "False",
                                   "0",
                                   "1",
                                   "-1",
                                   "4",
                                   "8",
                                   "16",
                                   "128",
                                   "0.01",
                                   "1e999",
                                   "Linear",
                                   "[Linear]",
                                   "['re:.*mlp.*', lm_head]",
                                   "['re:(']",
                                   "[]",
                                   "{}",
                                   "[[a], b]",
                                   "{a: 1}",
                                   "W4A16",
                                   "W8A8",
                                   "FP8_DYNAMIC",
                                   "NVFP4",
                                   "{W4A16: ['re:.*mlp.*'], W8A16: Linear}",
                                   "int",
                                   "float",
                                   "group",
                                   "channel",
                                   "tensor",
                                   "token",
                                   "block",
                                   "[128, 128]",
                                   "static",
                                   "dynamic",
                                   "both",
                                   "log_equalization",
                                   "'\"\\u00e9'"};

class Writer {
 public:
  Writer(const unsigned char* bytes, std::size_t size) : bytes_(bytes), size_(size) {}

  std::string recipe() {
    std::string text = pick(2) == 0 ? "" : key(Place::kStage, "");
    text += "quant_stage:\n  quant_modifiers:\n";
    const auto rows = llmcompressor::modifier_rows();
    for (std::size_t count = 1 + pick(3); count > 0; --count) text += modifier(rows[pick(8) % rows.size()]);
    return text;
  }

 private:
  std::size_t pick(std::size_t below) { return at_ < size_ ? bytes_[at_++] % below : 0; }

  std::string modifier(const ModifierRow& row) {
    std::string text = "    " + std::string(row.name) + ":\n";
    for (std::size_t count = pick(5); count > 0 && !row.places.empty(); --count)
      text += key(row.places[pick(row.places.size())], "      ");
    return text;
  }

  // A key of the place and its value, or the arguments below it.
  std::string key(Place place, const std::string& indent) {
    std::size_t count = 0;
    for (const KeyRow& row : llmcompressor::key_rows()) count += row.place == place ? 1 : 0;
    std::size_t chosen = pick(count);
    for (const KeyRow& row : llmcompressor::key_rows()) {
      if (row.place != place || chosen-- != 0) continue;
      const std::string name(row.key), head = indent + name + ":";
      if (pick(4) != 0) {
        if (place == Place::kQuantizer && name == "config_groups")
          return head + "\n" + indent + "  g:\n" + below(Place::kGroup, indent + "    ") +
                 (pick(2) == 0 ? "" : indent + "  h:\n" + below(Place::kGroup, indent + "    "));
        if (place == Place::kQuantizer && name == "kv_cache_scheme")
          return head + "\n" + below(Place::kKvCache, indent + "  ");
        if (place == Place::kGroup && name == "weights")
          return head + "\n" + below(Place::kWeights, indent + "  ");
        if (place == Place::kGroup && name == "input_activations")
          return head + "\n" + below(Place::kInputs, indent + "  ");
      }
      return head + " " + kValues[pick(std::size(kValues))] + "\n";
    }
    return "";
  }

  std::string below(Place place, const std::string& indent) {
    std::string text;
    for (std::size_t count = 1 + pick(5); count > 0; --count) text += key(place, indent);
    return text;
  }

  const unsigned char* bytes_;
  std::size_t size_, at_ = 0;
};

// "8:7: ..."
bool begins_with_a_place(const std::string& text) {
  const std::size_t first = text.find_first_not_of("0123456789");
  if (first == 0 || first == std::string::npos || text[first] != ':') return false;
  const std::size_t second = text.find_first_not_of("0123456789", first + 1);
  return second > first + 1 && second != std::string::npos && text[second] == ':';
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  Recipe recipe;
  try {
    recipe = Recipe::parse(Writer(bytes, size).recipe(), "input.yaml");
  } catch (const Error& error) {
    if (exit_code(error.kind()) != 2 || error.detail().file != "input.yaml" ||
        !begins_with_a_place(error.detail().where + ":"))
      std::abort();
    return 0;
  }
  if (recipe.methods.empty() || (!recipe.scheme && recipe.overrides.empty())) std::abort();
  for (const std::string& note : recipe.notes)
    if (!begins_with_a_place(note)) std::abort();
  Json json = recipe.to_json(), again = Recipe::from_json(json, "input.yaml").to_json();
  if (!(json == again)) std::abort();
  return 0;
}
