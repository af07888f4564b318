// The pages of the KV cache on the device, and who has which (kv_blocks.h). Attention sees tables of blocks
// and never knows that two sequences share one.
//
// A page has the keys and values of one block of positions in the layers of one page group. Groups of equally
// many layers share one pool: any page can be any group's, so nothing is divided between them beforehand.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/backend.h"
#include "device/exchange.h"
#include "model/model_spec.h"
#include "model/sequence_state.h"
#include "runtime/kv_blocks.h"
#include "tensor/kv_type.h"

namespace llmq {

// Which layers have their pages in one table.
struct PageGroups {
  struct Place {
    std::size_t group = 0, layer = 0;  // which one of the group's layers
  };
  std::vector<KvWindow> windows;  // of each group: what its layers look back
  std::vector<Place> places;      // of every layer of the model
  std::size_t layers = 0;         // of each group
};

// Layers of the same window are a group, or several, since all groups have equally many layers: as many as
// divide the number of layers of every window. All layers are one group where they look back equally far,
// where their pages differ in size, or where not all are on the same devices; its window is the widest if
// every layer has one, else none. A layer that reads the pages of another one is where that is.
PageGroups page_groups(const ModelSpec& spec, bool same_devices);
// Positions of a cache that has room for a sequence on its way to `positions`, at most `step` at a time.
std::int64_t kv_positions(const PageGroups& groups, int block_size, std::int64_t positions,
                          std::int64_t step);

class KvCache {
 public:
  // As many pages as hold `tokens` positions of all layers. Error(kUsage) for a cache that holds nothing,
  // Error(kResource) for one beyond what a table can name.
  KvCache(const ModelSpec& spec, Backend& backend, KvType type, std::int64_t tokens, int block_size,
          bool prefix_caching = true);
  // Each layer's pages on a backend of its own, or, where there are N times as many backends as layers, those
  // of N members next to one another, `spec` being what each of them has (model/divided_block.h).
  KvCache(const ModelSpec& spec, std::vector<Backend*> backends, KvType type, std::int64_t tokens,
          int block_size, bool prefix_caching);

  KvBlocks& blocks() { return blocks_; }
  std::size_t group_of(std::size_t layer) const { return groups_.places[layer].group; }
  const KvPages& pages(int layer, std::size_t member = 0) const;
  // Of the FP8 codes of a layer's keys and values; 1 until this is called.
  void set_scales(int layer, float keys, float values);
  // Whole pages, in this order; by way of the host, because copies are few (the last page of a prompt with
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
  // visit(backend, keys or values) of all memory, where page i is the i-th part of each.
  template <class Visit>
  void each_store(const Visit& visit) const;
  // What one page has on every member, layer behind layer.
  void read(std::int32_t block, std::byte* to) const;
  void write(std::int32_t block, const std::byte* from);

  std::size_t members_;
  std::vector<Backend*> backends_;  // by layer, then by member; as are the pages
  PageGroups groups_;
  KvBlocks blocks_;
  std::vector<Buffer> storage_;
  std::vector<std::size_t> stores_;  // the places whose pages have memory of their own
  std::vector<KvPages> pages_;       // layers in one place of their groups have the same memory
  std::vector<std::size_t> owners_;  // of each layer: whose pages it reads, mostly its own
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
  std::span<const PageTable> tables() const { return table_.groups; }
  // What it leaves beside its pages, from make() where it has none yet.
  template <class Make>
  SequenceState* state(const Make& make) {
    if (!state_) state_ = make();
    return state_.get();
  }

 private:
  KvCache& cache_;
  KvTable table_;
  std::unique_ptr<SequenceState> state_;
};

}  // namespace llmq
