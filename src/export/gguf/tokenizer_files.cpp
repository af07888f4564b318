#include "export/gguf/tokenizer_files.h"

#include "base/error.h"
#include "base/json_text.h"

namespace llmq {
namespace {

std::string text_or_empty(const Json* json) {
  return json != nullptr && json->is_string() ? json->as_string() : "";
}

// First the token that tokenizer_config.json names, then the id that config.json gives.
void find_special_ids(TokenizerFiles& files) {
  for (const auto& [type, key] : kSpecialKeys) {
    const std::string content = token_content(files.config.find(std::string(type) + "_token"));
    const std::int64_t id = content.empty() ? -1 : files.added_id(content);
    const Json* given = files.model_config.find(std::string(type) + "_token_id");
    if (id >= 0)
      files.special_ids[type] = id;
    else if (given != nullptr && given->is_integer() && given->as_integer() >= 0)
      files.special_ids[type] = given->as_integer();
  }
}

}  // namespace

const Json* find_object(const Json& json, std::string_view key) {
  const Json* found = json.find(key);
  return found != nullptr && found->is_object() ? found : nullptr;
}
const Json* find_array(const Json& json, std::string_view key) {
  const Json* found = json.find(key);
  return found != nullptr && found->is_array() ? found : nullptr;
}
bool flag_at(const Json& json, std::string_view key, bool otherwise) {
  const Json* found = json.find(key);
  return found != nullptr && found->is_bool() ? found->as_bool() : otherwise;
}

std::string token_content(const Json* entry) {
  if (entry == nullptr) return {};
  return entry->is_object() ? text_at(*entry, "content") : text_or_empty(entry);
}

void check_tokenizer_file(Io& io, const Checkpoint& checkpoint) {
  if (!io.exists(checkpoint.path() / "tokenizer.json"))
    fail(ErrorKind::kBadInput,
         {"a GGUF carries its tokenizer, and the model has no tokenizer.json", checkpoint.path().string(),
          "tokenizer.json", "put the model's tokenizer.json beside config.json"});
}

TokenizerFiles read_tokenizer_files(Io& io, const Checkpoint& checkpoint) {
  TokenizerFiles files;
  const Path path = checkpoint.path() / "tokenizer.json",
             config = checkpoint.path() / "tokenizer_config.json";
  files.file = path.string();
  files.tokenizer = Json::parse(read_text(io, path), files.file);
  if (io.exists(config)) files.config = Json::parse(read_text(io, config), config.string());
  files.model_config = checkpoint.config();
  if (const Json* added = find_array(files.tokenizer, "added_tokens"))
    for (const Json& token : added->items())
      files.added.push_back(
          {token.at("id").as_integer(), token.at("content").as_string(), flag_at(token, "special", false)});
  find_special_ids(files);
  return files;
}

}  // namespace llmq
