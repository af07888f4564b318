// Reading fields of tokenizer.json with a fallback for absent ones and with an error that names the
// component.
#pragma once
#include <string>

#include "base/error.h"
#include "base/json.h"

namespace llmq {

inline bool flag_of(const Json& json, std::string_view key, bool otherwise) {
  const Json* found = json.find(key);
  return found == nullptr || found->is_null() ? otherwise : found->as_bool();
}

inline bool is_set(const Json* json) { return json != nullptr && !json->is_null(); }

[[noreturn]] inline void refuse_component(const std::string& kind, const std::string& name,
                                          const std::string& file) {
  fail(ErrorKind::kUnsupported, {kind + " '" + name + "' is not known to llmq", file, kind,
                                 "use a byte-level or SentencePiece-style BPE tokenizer"});
}

// {"String": "..."} or {"Regex": "..."}
struct JsonPattern {
  bool is_regex;
  std::string text;
};
inline JsonPattern pattern_of(const Json& json, const std::string& file) {
  const Json& pattern = json.at("pattern");
  if (const Json* regex = pattern.find("Regex")) return {true, regex->as_string()};
  if (const Json* string = pattern.find("String")) {
    if (string->as_string().empty())
      fail(ErrorKind::kUnsupported, {"an empty pattern splits nothing", file, "pattern", {}});
    return {false, string->as_string()};
  }
  fail(ErrorKind::kBadInput, {"a pattern is neither 'String' nor 'Regex'", file, "pattern", {}});
}

// "<s>", or {"content": "<s>", ...}, as tokenizer_config.json and special_tokens_map.json have tokens.
inline std::optional<std::string> token_text(const Json& token) {
  const Json* const text = token.is_object() ? token.find("content") : &token;
  if (text == nullptr || !text->is_string()) return std::nullopt;
  return text->as_string();
}
inline std::optional<std::string> token_named(const Json& json, std::string_view key) {
  const Json* const found = json.find(key);
  return found == nullptr ? std::nullopt : token_text(*found);
}

}  // namespace llmq
