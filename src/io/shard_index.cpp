// Checks an index as text, before any of its names touches the file system.
#include "io/shard_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "io/damaged_file.h"

namespace llmq {
namespace {

[[noreturn]] void refuse_index(const std::string& file, std::string where, std::string message) {
  fail(ErrorKind::kBadInput,
       {std::move(message), file, std::move(where), "the index is damaged or hostile; download it again"});
}

// What of a hostile text goes into a message.
std::string quoted_text(std::string_view text) { return Json(text.substr(0, 80)).dump(); }

}  // namespace

bool is_shard_name(std::string_view name) {
  if (name.size() > 255 || !name.ends_with(".safetensors") || name.starts_with('.')) return false;
  return std::none_of(name.begin(), name.end(), [](char c) {
    return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
}

ShardIndex read_shard_index(const Json& json, const std::string& file) {
  const Json* map = json.find("weight_map");
  if (!map || !map->is_object()) refuse_index(file, "weight_map", "is missing or not an object");
  if (map->members().empty()) refuse_index(file, "weight_map", "lists no tensor");
  if (map->members().size() > kMostTensors)
    refuse_index(file, "weight_map", fmt::format("lists more than {} tensors", kMostTensors));
  ShardIndex index;
  for (const auto& [tensor, shard] : map->members()) {
    if (tensor.size() > kMostTensorNameBytes)
      refuse_index(file, "weight_map",
                   fmt::format("a tensor name is longer than {} bytes", kMostTensorNameBytes));
    if (!shard.is_string())
      refuse_index(file, tensor, fmt::format("its shard is {}, not a string", shard.kind()));
    if (!is_shard_name(shard.as_string()))
      refuse_index(
          file, tensor,
          fmt::format("{} is not the plain name of a .safetensors file", quoted_text(shard.as_string())));
    index.shard_of.emplace(tensor, shard.as_string());
    index.shards.push_back(shard.as_string());
  }
  std::sort(index.shards.begin(), index.shards.end());
  index.shards.erase(std::unique(index.shards.begin(), index.shards.end()), index.shards.end());
  const Json* metadata = json.find("metadata");
  if (const Json* total = metadata ? metadata->find("total_size") : nullptr;
      total && total->is_integer() && total->as_integer() >= 0)
    index.total_size = static_cast<std::uint64_t>(total->as_integer());
  return index;
}

bool is_companion_name(std::string_view name) {
  constexpr std::array<std::string_view, 6> kNames{
      "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
      "generation_config.json"};
  constexpr std::array<std::string_view, 6> kPrefixes{"tokenizer", "chat_template", "LICENSE",
                                                      "LICENCE",   "NOTICE",        "USE_POLICY"};
  const auto starts = [&](std::string_view prefix) { return name.starts_with(prefix); };
  // tiktoken.model, and the Python that loaders read it by
  if (name == "tiktoken.model" || (starts("tokenization_") && name.ends_with(".py"))) return true;
  // preprocessor_config.json, video_preprocessor_config.json and processor_config.json, of what sees or hears
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() || name.ends_with(".tiktoken") ||
         name.ends_with("processor_config.json") || std::any_of(kPrefixes.begin(), kPrefixes.end(), starts);
}

}  // namespace llmq
