// What /tokenizer_info tells of a tokenizer: the fields of its tokenizer_config.json, as vLLM does, so that a
// client that has /tokenize and /detokenize needs no file of the model.
#pragma once
#include <optional>
#include <string>

#include "base/json.h"

namespace llmq {

// Special and added tokens are told as their texts; bos_token, eos_token, pad_token and unk_token always,
// null where there is none. Fields that are not a tokenizer's own, as a path of whoever trained it, are left
// out.
// `chat_template`: the text of the default one, where the model has one.
Json tokenizer_info(const Json& config, const std::optional<std::string>& chat_template);

}  // namespace llmq
