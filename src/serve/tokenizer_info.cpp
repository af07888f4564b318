#include "serve/tokenizer_info.h"

#include <array>
#include <string_view>

#include "tokenizer/json_fields.h"
#include "tokenizer/tokenizer_config.h"

namespace llmq {
namespace {

constexpr std::array kAlwaysTold = {"bos_token", "eos_token", "pad_token", "unk_token"};
// Texts, numbers and flags.
constexpr std::array kToldPlain = {"tokenizer_class",     "model_max_length", "add_bos_token",
                                   "add_eos_token",       "add_prefix_space", "clean_up_tokenization_spaces",
                                   "padding_side",        "truncation_side",  "legacy",
                                   "split_special_tokens"};

// Null for what is no token.
Json text_or_null(const Json& token) {
  const auto text = token_text(token);
  return text ? Json(*text) : Json();
}

}  // namespace

Json tokenizer_info(const Json& config, const std::optional<std::string>& chat_template) {
  Json info = Json::object();
  for (const char* key : kToldPlain)
    if (const Json* value = config.find(key); value && !value->is_array() && !value->is_object())
      info[key] = *value;
  for (const char* key : kAlwaysTold) info[key] = Json();
  for (const char* key : kSpecialTokens)
    if (const auto token = token_named(config, key)) info[key] = *token;
  if (const Json* list = config.find("additional_special_tokens"); list && list->is_array()) {
    Json texts = Json::array();
    for (const Json& token : list->items()) texts.push_back(text_or_null(token));
    info["additional_special_tokens"] = std::move(texts);
  }
  if (const Json* added = config.find("added_tokens_decoder"); added && added->is_object()) {
    Json texts = Json::object();
    for (const Json::Member& token : added->members()) texts[token.first] = text_or_null(token.second);
    info["added_tokens_decoder"] = std::move(texts);
  }
  if (chat_template) info["chat_template"] = *chat_template;
  return info;
}

}  // namespace llmq
