// How an output's tensors are cut into shards, how the files are called, and what room they take.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace llmq {

// Where one shard begins: tensors [first, first + count) of the declarations.
struct ShardRange {
  std::size_t first = 0, count = 0;
};
// At least one tensor a shard; header included, no shard of several tensors is larger than `shard_bytes`.
std::vector<ShardRange> split_shards(std::span<const TensorDeclaration> tensors, std::uint64_t shard_bytes);
// "model.safetensors" when alone, else "model-00002-of-00014.safetensors"; `index` from 0.
std::string shard_name(std::size_t index, std::size_t count);

std::uint64_t declared_bytes(std::span<const TensorDeclaration> tensors);
// Not less than a shard's file, and than its tensors' lines in an index.
std::uint64_t most_shard_bytes(std::span<const TensorDeclaration> tensors);
std::uint64_t most_index_bytes(std::span<const TensorDeclaration> tensors);

// model.safetensors.index.json of tensors by shard; `parameters` above 0 are said in it.
std::string index_text(std::span<const std::vector<TensorDeclaration>> shards, std::uint64_t parameters);

}  // namespace llmq
