// What the modifiers of an llm-compressor recipe say, as it was read: quant/recipe/llmcompressor_recipe.cpp
// makes one job of them.
#pragma once
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/yaml.h"
#include "quant/recipe/recipe.h"

namespace llmq::llmcompressor {

// compressed_tensors' QuantizationArgs: how weights, inputs, or keys and values are rounded.
struct QuantArgs {
  const Yaml* node = nullptr;
  std::string name;  // "config_groups.group_0.weights"
  int bits = 8;      // its defaults
  bool is_float = false, is_symmetric = true, is_dynamic = false;
  bool is_local = false;  // dynamic but for the global scale of two levels
  std::string strategy;   // empty: not given
  std::optional<int> group_size;
  std::optional<std::vector<int>> block;
  const Yaml::Member* order = nullptr;  // actorder, where it asks for one

  // Refuses the job at the argument, or at the mapping where it is not written.
  [[noreturn]] void refuse(std::string_view key, const std::string& message, const std::string& hint) const;
  // Of two arguments that do not go together, the one that is written behind the other.
  std::string_view later_of(std::string_view a, std::string_view b) const;
};

struct Group {
  SchemeRequest scheme;
  std::vector<std::string> targets;
  const Yaml::Member* order = nullptr;  // its weights' actorder
};

struct Modifier {
  const Yaml::Member* at = nullptr;
  std::string name, method;
  std::vector<Group> groups;  // what it quantizes; empty: nothing
  const Yaml::Member *scheme = nullptr, *config_groups = nullptr, *targets = nullptr, *ignore = nullptr,
                     *kv_cache = nullptr, *order = nullptr;
};

struct Draft {
  Recipe& recipe;
  std::vector<Modifier> modifiers;           // in the order in which they stand
  QuantArgs args;                            // that are being read
  std::optional<QuantArgs> weights, inputs;  // of the group that is being read

  Modifier& modifier() { return modifiers.back(); }
  Group& group() { return modifier().groups.back(); }
  // "8:7: GPTQModifier.block_size: 64: <instead>" among the recipe's notes.
  void note(const Yaml::Member& key, const std::string& name, std::string_view instead);
};

// Error(kUnsupported) at a node, or at a key.
[[noreturn]] void refuse(const Yaml& node, const std::string& message, const std::string& hint = {});
[[noreturn]] void refuse(const Yaml::Member& key, const std::string& message, const std::string& hint = {});
// Booleans as PyYAML reads them: True is as good as true.
bool read_flag(const Yaml& node);
bool is_text(const Yaml& node, std::initializer_list<std::string_view> words);  // a scalar, one of `words`

}  // namespace llmq::llmcompressor
