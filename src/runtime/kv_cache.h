// The pages of the KV cache on the device, and who has which (kv_blocks.h). Attention sees tables of blocks
// and never knows that two sequences share one.
//
// A page has the keys and values of one block of positions in the layers of one page group. Groups whose
// layers have as much of a position share one pool, with equally many layers each: any page can be any
// group's, so nothing is divided between them beforehand. Layers of another size have a pool of their own.
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
  std::vector<KvWindow> windows;     // of each group: what its layers look back
  std::vector<std::size_t> pool_of;  // of each group
  std::vector<std::size_t> layers;   // of each group of a pool
  std::vector<Place> places;         // of every layer of the model
  std::size_t pool_of_layer(std::size_t layer) const { return pool_of[places[layer].group]; }
  // Whether a pool's pages are all given back by a window, while those of others are not.
  bool passes(std::size_t pool) const;
};

// Layers of one window and one size are a group, or several, since all groups of a pool have equally many
// layers: as many as divide the number of layers of every window. All layers are one group where they look
// back equally far, where some leave no pages, or where not all are on the same devices; its window is the
// widest if every layer has one, else none. A layer that reads the pages of another one is where that is.
PageGroups page_groups(const ModelSpec& spec, bool same_devices);
// Positions of a cache that has room for a sequence on its way to `positions`, at most `step` at a time.
std::int64_t kv_positions(const PageGroups& groups, int block_size, std::int64_t positions,
                          std::int64_t step);
// Positions that pools which a window passes need for so many sequences, `step` rows of all of them at a
// time; 0: there are no such.
std::int64_t kv_window_positions(const PageGroups& groups, int block_size, std::int64_t sequences,
                                 std::int64_t step);
// Of a position, in those pools.
std::uint64_t kv_window_bytes(const PageGroups& groups, const ModelSpec& spec, const KvType& type);

class KvCache {
 public:
  // As many pages as hold `tokens` positions of all layers. Error(kUsage) for a cache that holds nothing,
  // Error(kResource) for one beyond what a table can name.
  KvCache(const ModelSpec& spec, Backend& backend, KvType type, std::int64_t tokens, int block_size,
          bool prefix_caching = true);
  // Each layer's pages on a backend of its own, or, where there are N times as many backends as layers, those
  // of N members next to one another, `spec` being what each of them has (model/divided_block.h).
  // Pools that a window passes have room for `window_tokens` positions, if that is less; 0: for as many.
  KvCache(const ModelSpec& spec, std::vector<Backend*> backends, KvType type, std::int64_t tokens,
          int block_size, bool prefix_caching, std::int64_t window_tokens = 0);

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
  // A sequence's recurrent state, in the places of as many pages as it takes.
  std::int32_t pages_of(std::uint64_t state_bytes) const;
  void swap_out(const SequenceState& state, std::span<const std::int32_t> slots);
  void swap_in(SequenceState& state, std::span<const std::int32_t> slots, std::int64_t length);
  void synchronize();  // with every device that has pages
  std::size_t bytes() const;
  std::size_t page_bytes() const { return page_bytes_; }  // of the largest

 private:
  // visit(backend, a block's part of keys or values) of all memory that the block's pool has.
  template <class Visit>
  void each_part(std::int32_t block, const Visit& visit) const;
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
  std::byte* place(std::int32_t slot) const {
    return swapped_.get() + static_cast<std::size_t>(slot) * page_bytes();
  }
  std::size_t page_bytes_ = 0;
  std::unique_ptr<std::byte[]> swapped_;
  std::vector<std::byte> passing_;  // a state on its way
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
