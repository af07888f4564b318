// The one model that a server answers for, and what its texts are made of and turned into.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace llmq {

struct ServedModel {
  std::string name;                  // in answers and metrics
  std::vector<std::string> aliases;  // that requests may use, too
  std::int64_t created = 0;          // seconds since 1970
  std::int64_t max_model_len = 0;    // prompt and answer together
  std::int64_t vocabulary_size = 0;  // ids are below
  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat_template;
  Json tokenizer_info = Json::object();  // tokenizer_info.h

  // Whether a request that names this asks for the model itself.
  bool answers_to(const std::string& asked) const;
};

// A prompt with more bytes is refused unseen: no max_model_len tokens hold as much, unless a tokenizer drops
// most of a text.
std::size_t most_prompt_bytes(const ServedModel& model);

}  // namespace llmq
