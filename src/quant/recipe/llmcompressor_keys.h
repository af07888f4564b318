// What llmq does about each key of an llm-compressor recipe, in one table for whoever reads a recipe, for
// docs/guides/llm-compressor.md and for the tests. A key that is not in it is refused as unknown, with its
// line.
//
//   honoured   the job is what the key asks; a value that llmq cannot follow is refused where it stands
//   noted      the value is not followed: a warning says what was asked and what is done instead
//   refused    by name, unless the value is null
//
// Sources: the fields of the modifiers of llm-compressor 0.14.0.1, of QuantizationScheme and QuantizationArgs
// of compressed-tensors 0.19, and those of earlier versions that recipes still hold.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "quant/recipe/llmcompressor_draft.h"

namespace llmq::llmcompressor {

enum class Answer { kHonoured, kNoted, kRefused };

// Where a key stands.
enum class Place {
  kStage,      // the recipe, a stage, a group of modifiers
  kModifier,   // of every modifier
  kQuantizer,  // of AWQModifier (as before 0.14), GPTQModifier and QuantizationModifier
  kAwq,
  kGptq,
  kSmoothQuant,
  kGroup,  // below config_groups
  kWeights,
  kInputs,   // input_activations
  kKvCache,  // kv_cache_scheme
};

struct KeyRow {
  Place place;
  std::string_view key;
  Answer answer;
  // Honoured: what it is here. Noted: what is done instead. Refused: what would do.
  std::string_view words;
  void (*read)(Draft&, const Yaml::Member&) = nullptr;  // honoured
  std::string_view same = {};                           // noted: the value that says what is done anyway
  bool null_says = false;  // honoured: null is a value of its own, not a key left out
};

std::span<const KeyRow> key_rows();
std::string_view place_name(Place place);  // "GPTQModifier", "weights"; "every modifier"

// A modifier by its name: read, or refused with what would do.
struct ModifierRow {
  std::string_view name;
  std::string_view method;  // its word of quant/methods/registry.h; empty: refused
  std::span<const Place> places;
  std::string_view words;
};
std::span<const ModifierRow> modifier_rows();

// One key by the rows of `places`; false where there is none. `name`: what it stands below in messages,
// "GPTQModifier", or empty. Error(kUnsupported) at the key where it is refused.
bool read_key(Draft& draft, const Yaml::Member& key, const std::string& name, std::span<const Place> places);
// Every key of `mapping`. Error(kBadInput) at one that is unknown.
void read_keys(Draft& draft, const Yaml& mapping, const std::string& name, std::span<const Place> places);

}  // namespace llmq::llmcompressor
