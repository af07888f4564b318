// The pages of the KV cache on the device, and who has which (kv_blocks.h). Attention sees tables of blocks
// and never knows that two sequences share one.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/backend.h"
#include "device/exchange.h"
#include "model/model_spec.h"
#include "runtime/kv_blocks.h"
#include "tensor/kv_type.h"

namespace llmq {

// The widest of a model whose layers all have one; else none.
KvWindow kv_window(const ModelSpec& spec);

class KvCache {
 public:
  // Its blocks know the window where every layer of the model has one: tables are those of all layers.
  // Error(kUsage) for a cache that holds nothing, Error(kResource) for one beyond what a table can name.
  KvCache(const ModelSpec& spec, Backend& backend, KvType type, std::int64_t tokens, int block_size,
          bool prefix_caching = true);
  // Each layer's pages on a backend of its own, or, where there are N times as many backends as layers, those
  // of N members next to one another, `spec` being what each of them has (model/divided_block.h).
  KvCache(const ModelSpec& spec, std::vector<Backend*> backends, KvType type, std::int64_t tokens,
          int block_size, bool prefix_caching);

  KvBlocks& blocks() { return blocks_; }
  const KvPages& pages(int layer, std::size_t member = 0) const;
  // Of the FP8 codes of a layer's keys and values; 1 until this is called.
  void set_scales(int layer, float keys, float values);
  // Of every layer, in this order; by way of the host, because copies are few (the last page of a prompt with
  // several answers).
  void copy(std::span<const BlockCopy> copies);
  // Host memory for so many pages, untouched until pages come, and pages on their way there and back.
  void give_swap_space(std::int32_t pages);
  void swap_out(std::span<const PageSwap> pages);
  void swap_in(std::span<const PageSwap> pages);
  void synchronize();  // with every device that has pages
  std::size_t bytes() const;
  std::size_t page_bytes() const { return bytes() / static_cast<std::size_t>(blocks_.total()); }

 private:
  // One page of every layer and member, one behind another.
  void read(std::int32_t block, std::byte* to) const;
  void write(std::int32_t block, const std::byte* from);

  std::size_t members_;
  std::vector<Backend*> backends_;  // by layer, then by member; as are the pages
  KvBlocks blocks_;
  std::vector<Buffer> storage_;
  std::vector<KvPages> pages_;
  Exchange exchange_;
  std::unique_ptr<std::byte[]> swapped_;
};

// One sequence for as long as this lives, for work without a scheduler.
class KvSequence {
 public:
  explicit KvSequence(KvCache& cache) : cache_(cache), table_(cache.blocks().open()) {}
  ~KvSequence() { cache_.blocks().close(table_); }
  KvSequence(const KvSequence&) = delete;
  KvSequence& operator=(const KvSequence&) = delete;

  // Room for `count` more positions. Error(kResource), and nothing done, when too few blocks are free, with
  // the figures.
  void extend(std::int64_t count);
  void truncate(std::int64_t length) { cache_.blocks().truncate(table_, length); }
  std::int64_t length() const { return table_.length; }
  std::span<const std::int32_t> blocks() const { return table_.blocks; }

 private:
  KvCache& cache_;
  KvTable table_;
};

}  // namespace llmq
