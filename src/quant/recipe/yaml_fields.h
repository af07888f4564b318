// Typed, bounded reads of YAML nodes, shared by the two recipe dialects. Every failure is Error(kBadInput) at
// the node's line and column.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/yaml.h"
#include "quant/recipe/recipe.h"

namespace llmq {

bool is_null(const Yaml& node);
std::string read_word(const Yaml& node, const std::vector<std::string>& allowed);  // one of `allowed`
std::int64_t read_integer(const Yaml& node, std::int64_t low, std::int64_t high);
double read_number(const Yaml& node, double low, double high);
std::vector<std::string> read_names(const Yaml& node);  // a string or a sequence of strings
SchemeRequest read_scheme(const Yaml& node);  // a scheme name, or {weights: {...}, activations: {...}}
// The same, or `dense` (`bf16` as well) for linears that stay as they are: nothing.
std::optional<SchemeRequest> read_scheme_or_dense(const Yaml& node);
// The scheme of an override: the same, or one of GGUF's types.
void read_override(const Yaml& node, SchemeOverride& into);
std::string place_of(const Yaml& node);  // "3:7"
std::string joined(const std::vector<std::string>& words, std::string_view separator = ", ");
[[noreturn]] void fail_unknown_key(const Yaml& parent, const Yaml::Member& member, const std::string& path,
                                   const std::vector<std::string>& known);

// llm-compressor's dialect, as it is (llmcompressor_recipe.cpp).
bool is_llmcompressor_recipe(const Yaml& root);
void read_llmcompressor_recipe(const Yaml& root, Recipe& recipe);

}  // namespace llmq
