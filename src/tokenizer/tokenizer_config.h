// What stands beside a tokenizer: the names of its special tokens, its chat template and its flags.
#pragma once
#include <array>
#include <string>

#include "base/io.h"
#include "base/json.h"

namespace llmq {

inline constexpr std::array kSpecialTokens = {"bos_token", "eos_token", "unk_token", "sep_token",
                                              "pad_token", "cls_token", "mask_token"};

struct TokenizerConfig {
  Json json;         // an object
  std::string file;  // where it was read, for errors
};

// tokenizer_config.json of a model directory, with the special tokens that only special_tokens_map.json
// names; or what a .gguf says in their place. Empty where there is neither. Error(kBadInput) where a file is
// no object.
TokenizerConfig tokenizer_config(Io& io, const Path& model);

}  // namespace llmq
