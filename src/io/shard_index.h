// model.safetensors.index.json: which tensor lies in which shard. And which files beside the weights belong
// to a model.
//
// A shard's name comes from outside and is used as a path: it must be one plain path part that ends in
// .safetensors.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace llmq {

struct ShardIndex {
  std::map<std::string, std::string, std::less<>> shard_of;  // tensor -> file name
  std::vector<std::string> shards;                           // each once, sorted
  std::optional<std::uint64_t> total_size;                   // metadata.total_size, when it is an integer
};

// 1 to 255 bytes without '/', '\\' or control characters, not hidden, ending in ".safetensors".
bool is_shard_name(std::string_view name);

ShardIndex read_shard_index(const Json& json, const std::string& file);

// Files that loaders or people need beside the weights and that quantizing leaves as they are: tokenizer*,
// vocab.json, merges.txt, special_tokens_map.json, added_tokens.json, generation_config.json, chat_template*,
// *.tiktoken, LICENSE*, NOTICE*, USE_POLICY*.
bool is_companion_name(std::string_view name);

}  // namespace llmq
