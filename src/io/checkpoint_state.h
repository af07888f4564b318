// What an open checkpoint holds: tensors, the mappings behind them, and what is leased of those.
#pragma once
#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/json.h"
#include "io/checkpoint.h"
#include "io/read_ahead.h"

namespace llmq {

struct Checkpoint::State {
  Path path;
  bool gguf = false;
  Json config;
  std::string quantization_file = "config.json";  // has quantization_config
  std::vector<Path> shards;
  std::vector<std::shared_ptr<const Mapping>> mappings;  // one per shard, and perhaps one more (io/codes)
  std::vector<StoredTensor> tensors;                     // by name
  std::vector<StoredStack> stacks;
  std::vector<Path> companions, configs;
  std::vector<std::vector<std::max_align_t>> copies;  // of tensors that lie at odd addresses
  std::shared_ptr<const State> shown;  // by Checkpoint::showing(), whose copies these tensors lie in
  std::uint64_t tensor_bytes = 0, header_bytes = 0;
  // Behind the mappings, so that leases go before them.
  mutable std::mutex mutex;
  mutable std::map<std::pair<int, std::uint64_t>, Lease> kept;  // by shard and offset
  mutable ReadAhead ahead;

  // Of a tensor, or of a part that says its shard.
  template <class Stored>
  const Mapping& mapping(const Stored& stored) const {
    return *mappings[static_cast<std::size_t>(stored.shard)];
  }
  // A copy needs no lease.
  bool is_mapped(const StoredTensor& tensor) const {
    return tensor.view.pointer == mapping(tensor).bytes().data() + tensor.offset;
  }
  struct Bytes {
    std::uint64_t offset = 0, size = 0;  // in the shard
  };
  static Bytes bytes_of(const StoredTensor& tensor, std::int64_t first, std::int64_t count) {
    const std::uint64_t row_bytes =
        tensor.stored_bytes() / static_cast<std::uint64_t>(std::max<std::int64_t>(tensor.view.rows(), 1));
    return {tensor.offset + static_cast<std::uint64_t>(first) * row_bytes,
            static_cast<std::uint64_t>(count) * row_bytes};
  }
  Lease take_over(const StoredTensor& tensor, std::int64_t first, std::int64_t count) const {
    const Bytes bytes = bytes_of(tensor, first, count);
    return ahead.take_over(mapping(tensor), bytes.offset, bytes.size);
  }
  void keep_small(const StoredTensor& tensor) const {
    if (!is_kept(tensor) || !is_mapped(tensor)) return;
    const std::lock_guard lock(mutex);
    Lease& lease = kept[{tensor.shard, tensor.offset}];
    if (!lease) lease = mapping(tensor).lease(tensor.offset, tensor.stored_bytes());
  }
};

}  // namespace llmq
