// tokenizer.ggml.pre: the name under which llama.cpp knows how a byte-level tokenizer splits text into words.
#pragma once
#include <string>

#include "base/json.h"
#include "tokenizer/tokenizer.h"

namespace llmq {

// `json` is tokenizer.json, which `tokenizer` was made from; `file` its name. Error(kUnsupported) where
// llama.cpp has no name for it.
std::string gguf_pre_tokenizer(const Tokenizer& tokenizer, const Json& json, const std::string& file);

}  // namespace llmq
