#include "export/output/shard_layout.h"

#include <fmt/format.h>

#include <map>

#include "base/json.h"
#include "tensor/tensor_view.h"

namespace llmq {
namespace {

// Not less than the tensor's line in a safetensors header: its name (escaped, at most six for one), dtype, up
// to eight extents, two offsets.
std::uint64_t header_bytes(const TensorDeclaration& tensor) { return 6 * tensor.name.size() + 320; }

constexpr std::uint64_t kShardSlack = 4096;  // length word, metadata, padding

}  // namespace

std::uint64_t declared_bytes(std::span<const TensorDeclaration> tensors) {
  std::uint64_t bytes = 0;
  for (const TensorDeclaration& tensor : tensors)
    bytes += TensorView(static_cast<const void*>(nullptr), tensor.dtype, tensor.shape).bytes();
  return bytes;
}

std::vector<ShardRange> split_shards(std::span<const TensorDeclaration> tensors, std::uint64_t shard_bytes) {
  std::vector<ShardRange> shards;
  std::uint64_t filled = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t size = declared_bytes(tensors.subspan(i, 1)) + header_bytes(tensors[i]);
    if (shards.empty() || filled + size + kShardSlack > shard_bytes) {
      shards.push_back({i, 0});
      filled = 0;
    }
    ++shards.back().count;
    filled += size;
  }
  if (shards.empty()) shards.push_back({0, 0});
  return shards;
}

std::string shard_name(std::size_t index, std::size_t count) {
  return count == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

std::uint64_t most_shard_bytes(std::span<const TensorDeclaration> tensors) {
  return kShardSlack + declared_bytes(tensors) + most_index_bytes(tensors);
}

std::uint64_t most_index_bytes(std::span<const TensorDeclaration> tensors) {
  std::uint64_t bytes = 0;
  for (const TensorDeclaration& tensor : tensors) bytes += header_bytes(tensor);
  return bytes;
}

std::string index_text(std::span<const std::vector<TensorDeclaration>> shards, std::uint64_t parameters) {
  std::map<std::string, std::string> shard_of;
  std::uint64_t bytes = 0;
  for (std::size_t s = 0; s < shards.size(); ++s) {
    bytes += declared_bytes(shards[s]);
    for (const TensorDeclaration& tensor : shards[s]) shard_of[tensor.name] = shard_name(s, shards.size());
  }
  Json weights = Json::object();
  for (const auto& [name, shard] : shard_of) weights.members().emplace_back(name, Json(shard));
  Json index = Json::object();
  index["metadata"] = Json::object({{"total_size", Json(bytes)}});
  if (parameters > 0) index["metadata"]["total_parameters"] = Json(parameters);
  index["weight_map"] = std::move(weights);
  return index.dump(2) + "\n";
}

}  // namespace llmq
