// Paged KV cache: fixed blocks of positions, a block table per sequence, free blocks on a list. Today without
// sharing or eviction; the table is what attention sees from the first day, so both can come without touching
// a kernel.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "device/backend.h"
#include "model/model_spec.h"

namespace llmq {

class KvCache {
 public:
  KvCache(const ModelSpec& spec, Backend& backend, DType dtype, std::int64_t tokens, int block_size);
  std::uint64_t open_sequence();
  void close_sequence(std::uint64_t sequence);                 // frees its blocks
  void truncate(std::uint64_t sequence, std::int64_t length);  // keeps positions below `length`
  std::int64_t length(std::uint64_t sequence) const;
  // Room for `count` more positions: extends the block table and `slots` by theirs. Error(kResource), and nothing
  // done, when too few blocks are free, with the figures.
  void append(std::uint64_t sequence, std::int64_t count, std::vector<std::int64_t>& slots);
  std::span<const std::int32_t> block_table(std::uint64_t sequence) const;
  const KvPages& pages(int layer) const;
  std::int64_t free_blocks() const;
  std::size_t bytes() const;

 private:
  struct Sequence {
    std::int64_t length = 0;
    std::vector<std::int32_t> blocks;
  };
  int block_size_;
  std::vector<Buffer> storage_;
  std::vector<KvPages> pages_;
  std::vector<std::int32_t> free_;
  std::map<std::uint64_t, Sequence> sequences_;
  std::uint64_t next_ = 1;
};

}  // namespace llmq
