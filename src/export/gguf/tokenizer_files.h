// The files of a Hugging Face tokenizer as trees, and what several steps of a GGUF's vocabulary ask of them.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/io.h"
#include "base/json.h"
#include "io/checkpoint.h"

namespace llmq {

// Special tokens as tokenizer_config.json and as GGUF name them.
inline constexpr std::array<std::pair<const char*, const char*>, 7> kSpecialKeys{
    {{"bos", "bos"},
     {"eos", "eos"},
     {"unk", "unknown"},
     {"sep", "seperator"},  // as llama.cpp spells it
     {"pad", "padding"},
     {"cls", "cls"},
     {"mask", "mask"}}};

// A member that is there and of that kind; else null or what is given.
const Json* find_object(const Json& json, std::string_view key);
const Json* find_array(const Json& json, std::string_view key);
bool flag_at(const Json& json, std::string_view key, bool otherwise);

struct AddedEntry {
  std::int64_t id = 0;
  std::string content;
  bool special = false;
};

struct TokenizerFiles {
  std::string file;  // of tokenizer.json
  Json tokenizer, config = Json::object(), model_config;
  std::vector<AddedEntry> added;
  std::map<std::string, std::int64_t> special_ids;  // by "bos", "eos", ...

  std::int64_t added_id(const std::string& content) const {
    for (const AddedEntry& entry : added)
      if (entry.content == content) return entry.id;
    return -1;
  }
};

// What a token is written as: itself, or the "content" of an object; "" for null.
std::string token_content(const Json* entry);

// Error(kBadInput) without tokenizer.json, which every GGUF carries.
void check_tokenizer_file(Io& io, const Checkpoint& checkpoint);
TokenizerFiles read_tokenizer_files(Io& io, const Checkpoint& checkpoint);

}  // namespace llmq
