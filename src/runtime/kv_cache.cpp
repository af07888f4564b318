#include "runtime/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "base/error.h"

namespace llmq {
namespace {

std::int32_t block_count(std::int64_t tokens, int block_size, std::size_t groups) {
  if (tokens < 1 || block_size < 1)
    fail(ErrorKind::kUsage, "a KV cache of {} positions in blocks of {} holds nothing", tokens, block_size);
  const std::int64_t each = (tokens - 1) / block_size + 1,
                     blocks = each > INT32_MAX ? each : each * static_cast<std::int64_t>(groups);
  if (blocks > INT32_MAX)
    fail(ErrorKind::kResource, "a KV cache of {} blocks is beyond what a table can name", blocks);
  return static_cast<std::int32_t>(blocks);
}

std::vector<std::int32_t> block_counts(const PageGroups& groups, std::int64_t tokens,
                                       std::int64_t window_tokens, int block_size) {
  std::vector<std::int32_t> counts;
  std::int64_t sum = 0;
  for (std::size_t pool = 0; pool < groups.layers.size(); ++pool) {
    const bool fewer = window_tokens > 0 && groups.passes(pool);
    counts.push_back(block_count(
        fewer ? std::min(tokens, window_tokens) : tokens, block_size,
        static_cast<std::size_t>(std::count(groups.pool_of.begin(), groups.pool_of.end(), pool))));
    sum += counts.back();
  }
  if (sum > INT32_MAX)
    fail(ErrorKind::kResource, "a KV cache of {} blocks is beyond what a table can name", sum);
  return counts;
}

bool are_on_same_devices(std::span<Backend* const> backends, std::size_t members) {
  for (std::size_t place = members; place < backends.size(); ++place)
    if (backends[place] != backends[place - members]) return false;
  return true;
}

// The block whose pages this one reads; none: its own.
std::optional<std::size_t> shared_pages(const BlockSpec& block) {
  const AttentionSpec* const attention = block.attention();
  return attention == nullptr ? std::nullopt : attention->shared_pages;
}

bool same_size(const PagesSpec& one, const PagesSpec& other) {
  return one.kv_heads == other.kv_heads && one.head_dim == other.head_dim;
}

KvWindow window_of(const PagesSpec& pages) {
  if (pages.window <= 0) return {};
  return {pages.window, kAttentionTile, pages.chunks};
}

// The widest, where all have one; where they differ in more than width, as a window that moves with each
// position.
KvWindow common_window(const ModelSpec& spec) {
  KvWindow widest;
  for (const BlockSpec& block : spec.blocks) {
    const KvWindow own = window_of(block.pages);
    if (shared_pages(block)) continue;
    if (own.positions == 0) return {};
    const bool alike = widest.positions == 0 || own.looks_as(widest);
    if (own.positions > widest.positions) widest = own;
    widest.chunks &= alike;
  }
  return widest;
}

PageGroups one_group(const ModelSpec& spec) {
  PageGroups groups{{common_window(spec)}, {0}, {spec.blocks.size()}, {}};
  for (std::size_t layer = 0; layer < spec.blocks.size(); ++layer) groups.places.push_back({0, layer});
  return groups;
}

// Layers by what they look back and how much they have of a position.
struct LayerKinds {
  std::vector<PagesSpec> kinds;
  std::vector<std::size_t> counts, kind_of;  // layers of each; of each layer

  explicit LayerKinds(const ModelSpec& spec) {
    for (const BlockSpec& block : spec.blocks) {
      if (const auto owner = shared_pages(block)) {
        kind_of.push_back(kind_of.at(*owner));
        continue;
      }
      const auto same = std::find_if(kinds.begin(), kinds.end(), [&](const PagesSpec& known) {
        return same_size(known, block.pages) && window_of(known).looks_as(window_of(block.pages));
      });
      kind_of.push_back(static_cast<std::size_t>(same - kinds.begin()));
      if (same == kinds.end()) kinds.push_back(block.pages), counts.push_back(0);
      ++counts[kind_of.back()];
    }
  }
  bool look_differently_far() const {
    return std::any_of(kinds.begin(), kinds.end(), [&](const PagesSpec& kind) {
      return !window_of(kind).looks_as(window_of(kinds.front()));
    });
  }
  bool all_leave_pages() const {
    return std::all_of(kinds.begin(), kinds.end(), [](const PagesSpec& kind) { return kind.kv_heads > 0; });
  }
};

}  // namespace

bool PageGroups::passes(std::size_t pool) const {
  if (layers.size() == 1) return false;
  for (std::size_t group = 0; group < windows.size(); ++group)
    if (pool_of[group] == pool && windows[group].positions == 0) return false;
  return true;
}

PageGroups page_groups(const ModelSpec& spec, bool same_devices) {
  const LayerKinds of(spec);
  if (!of.look_differently_far() || !of.all_leave_pages() || !same_devices) return one_group(spec);
  PageGroups groups;
  std::vector<PagesSpec> sizes;  // of each pool
  std::vector<std::size_t> pool_of_kind;
  for (std::size_t kind = 0; kind < of.kinds.size(); ++kind) {
    const auto same = std::find_if(sizes.begin(), sizes.end(),
                                   [&](const PagesSpec& known) { return same_size(known, of.kinds[kind]); });
    pool_of_kind.push_back(static_cast<std::size_t>(same - sizes.begin()));
    if (same == sizes.end()) sizes.push_back(of.kinds[kind]), groups.layers.push_back(0);
    std::size_t& layers = groups.layers[pool_of_kind.back()];
    layers = std::gcd(layers, of.counts[kind]);
  }
  std::vector<std::size_t> first_group, counted;  // of each kind
  for (std::size_t kind = 0; kind < of.kinds.size(); ++kind) {
    const std::size_t pool = pool_of_kind[kind], many = of.counts[kind] / groups.layers[pool];
    first_group.push_back(groups.windows.size());
    counted.push_back(0);
    groups.windows.insert(groups.windows.end(), many, window_of(of.kinds[kind]));
    groups.pool_of.insert(groups.pool_of.end(), many, pool);
  }
  for (std::size_t layer = 0; layer < spec.blocks.size(); ++layer) {
    if (const auto owner = shared_pages(spec.blocks[layer])) {
      groups.places.push_back(groups.places.at(*owner));
      continue;
    }
    const std::size_t kind = of.kind_of[layer], layers = groups.layers[pool_of_kind[kind]],
                      number = counted[kind]++;
    groups.places.push_back({first_group[kind] + number / layers, number % layers});
  }
  return groups;
}

std::int64_t kv_positions(const PageGroups& groups, int block_size, std::int64_t positions,
                          std::int64_t step) {
  std::int64_t most = 0;
  for (std::size_t pool = 0; pool < groups.layers.size(); ++pool) {
    std::int64_t blocks = 0, many = 0;
    for (std::size_t group = 0; group < groups.windows.size(); ++group)
      if (groups.pool_of[group] == pool)
        blocks += most_kv_blocks(groups.windows[group], block_size, positions, step), ++many;
    most = std::max(most, (blocks + many - 1) / many * block_size);
  }
  return most;
}

std::int64_t kv_window_positions(const PageGroups& groups, int block_size, std::int64_t sequences,
                                 std::int64_t step) {
  std::int64_t most = 0;
  for (std::size_t group = 0; group < groups.windows.size(); ++group)
    if (groups.passes(groups.pool_of[group]))
      most = std::max(most, most_kv_blocks(groups.windows[group], block_size, INT32_MAX, 1));
  const std::int64_t of_step = (step + block_size - 1) / block_size;
  return most == 0 ? 0 : (sequences * most + of_step) * block_size;
}

std::uint64_t kv_window_bytes(const PageGroups& groups, const ModelSpec& spec, const KvType& type) {
  std::uint64_t bytes = 0;
  for (std::size_t layer = 0; layer < spec.blocks.size(); ++layer)
    if (const PagesSpec& own = spec.blocks[layer].pages; groups.passes(groups.pool_of_layer(layer)))
      bytes += static_cast<std::uint64_t>(own.kv_heads * type.bytes(own.head_dim));
  return bytes;
}

template <class Visit>
void KvCache::each_part(std::int32_t block, const Visit& visit) const {
  const std::size_t pool = blocks_.pool_of_block(block);
  const auto index = static_cast<std::uint64_t>(block - blocks_.begin_of(pool));
  for (const std::size_t place : stores_) {
    if (groups_.pool_of_layer(place / members_) != pool) continue;
    for (const TensorView* const all : {&pages_[place].keys, &pages_[place].values}) {
      TensorView page(all->pointer, all->dtype, {all->shape[1], all->shape[2], all->shape[3]}, all->device);
      page.pointer = all->as<std::byte>() + index * page.bytes();
      visit(*backends_[place], page);
    }
  }
}

KvCache::KvCache(const ModelSpec& spec, Backend& backend, KvType type, std::int64_t tokens, int block_size,
                 bool prefix_caching)
    : KvCache(spec, std::vector<Backend*>(spec.blocks.size(), &backend), type, tokens, block_size,
              prefix_caching) {}

KvCache::KvCache(const ModelSpec& spec, std::vector<Backend*> backends, KvType type, std::int64_t tokens,
                 int block_size, bool prefix_caching, std::int64_t window_tokens)
    : members_(backends.size() / std::max<std::size_t>(1, spec.blocks.size())),
      backends_(std::move(backends)),
      groups_(page_groups(spec, are_on_same_devices(backends_, members_))),
      blocks_(block_counts(groups_, tokens, window_tokens, block_size), block_size, prefix_caching,
              groups_.windows, groups_.pool_of) {
  const auto pages_of = [&](Backend& backend, const PagesSpec& layer, std::int64_t blocks,
                            std::int64_t head_bytes) {
    const auto bytes = checked_mul(static_cast<std::uint64_t>(blocks * block_size),
                                   static_cast<std::uint64_t>(layer.kv_heads * head_bytes));
    if (!bytes) fail(ErrorKind::kResource, "a KV cache of {} positions exceeds the address space", tokens);
    const Buffer& pages = storage_.emplace_back(backend.allocate(*bytes));
    return type.packed ? pages.view(DType::kU8, {blocks, layer.kv_heads, block_size, head_bytes})
                       : pages.view(type.plain, {blocks, block_size, layer.kv_heads, layer.head_dim});
  };
  std::vector<std::vector<std::size_t>> first_of;  // of each pool: layer in this place of its groups
  for (const std::size_t layers : groups_.layers) first_of.emplace_back(layers, spec.blocks.size());
  for (std::size_t place = 0; place < backends_.size(); ++place) {
    const std::size_t layer = place / members_;
    const std::optional<std::size_t> owner = shared_pages(spec.blocks[layer]);
    if (place % members_ == 0) owners_.push_back(owner.value_or(layer));
    if (owner) {
      pages_.emplace_back();
      continue;
    }
    const std::size_t pool = groups_.pool_of_layer(layer);
    std::size_t& first = first_of[pool][groups_.places[layer].layer];
    if (first < layer) {
      pages_.push_back(pages_[first * members_ + place % members_]);
      continue;
    }
    first = layer;
    const PagesSpec& own = spec.blocks[layer].pages;
    if (own.kv_heads == 0) {  // it leaves no pages
      pages_.emplace_back();
      continue;
    }
    Backend& backend = *backends_[place];
    const std::int64_t blocks = blocks_.count_of(pool);
    const TensorView keys = pages_of(backend, own, blocks, type.key_bytes(own.head_dim)),
                     values = pages_of(backend, own, blocks, type.value_bytes(own.head_dim));
    pages_.push_back({keys, values, block_size, type.packed});
    stores_.push_back(place);
  }
  for (std::size_t pool = 0; pool < blocks_.pools(); ++pool) {
    std::size_t bytes = 0;
    each_part(blocks_.begin_of(pool), [&](Backend&, const TensorView& page) { bytes += page.bytes(); });
    page_bytes_ = std::max(page_bytes_, bytes);
  }
}

const KvPages& KvCache::pages(int layer, std::size_t member) const {
  return pages_.at(owners_.at(static_cast<std::size_t>(layer)) * members_ + member);
}

void KvCache::set_scales(int layer, float keys, float values) {
  for (std::size_t member = 0; member < members_; ++member) {
    KvPages& pages = pages_.at(static_cast<std::size_t>(layer) * members_ + member);
    pages.key_scale = keys;
    pages.value_scale = values;
  }
}

void KvCache::read(std::int32_t block, std::byte* to) const {
  each_part(block, [&](Backend& backend, const TensorView& page) {
    backend.download(to, page);
    to += page.bytes();
  });
}

void KvCache::write(std::int32_t block, const std::byte* from) {
  each_part(block, [&](Backend& backend, const TensorView& page) {
    backend.upload(page, from);
    from += page.bytes();
  });
}

void KvCache::copy(std::span<const BlockCopy> copies) {
  for (const BlockCopy& copy : copies)
    each_part(copy.from, [&](Backend& backend, const TensorView& page) {
      TensorView to = page;
      to.pointer = page.as<std::byte>() +
                   (std::int64_t{copy.to} - copy.from) * static_cast<std::int64_t>(page.bytes());
      exchange_.copy(backend, page, backend, to);
    });
}

void KvCache::give_swap_space(std::int32_t pages) {
  swapped_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(pages) * page_bytes());
}

void KvCache::swap_out(std::span<const PageSwap> pages) {
  for (const PageSwap& page : pages) read(page.block, place(page.slot));
}

void KvCache::swap_in(std::span<const PageSwap> pages) {
  for (const PageSwap& page : pages) write(page.block, place(page.slot));
}

std::int32_t KvCache::pages_of(std::uint64_t state_bytes) const {
  return static_cast<std::int32_t>((state_bytes + page_bytes() - 1) / page_bytes());
}

void KvCache::swap_out(const SequenceState& state, std::span<const std::int32_t> slots) {
  passing_.resize(slots.size() * page_bytes());
  state.read(passing_);
  for (std::size_t i = 0; i < slots.size(); ++i)
    std::memcpy(place(slots[i]), passing_.data() + i * page_bytes(), page_bytes());
}

void KvCache::swap_in(SequenceState& state, std::span<const std::int32_t> slots, std::int64_t length) {
  passing_.resize(slots.size() * page_bytes());
  for (std::size_t i = 0; i < slots.size(); ++i)
    std::memcpy(passing_.data() + i * page_bytes(), place(slots[i]), page_bytes());
  state.write(passing_, length);
}

void KvCache::synchronize() {
  for (Backend* const backend : backends_) backend->synchronize();
}

std::size_t KvCache::bytes() const {
  std::size_t sum = 0;
  for (const Buffer& buffer : storage_) sum += buffer.bytes();
  return sum;
}

void KvSequence::extend(std::int64_t count) {
  KvBlocks& blocks = cache_.blocks();
  std::vector<BlockCopy> copies;
  const std::int64_t length = table_.length + count,
                     more = blocks.blocks_for(length) - blocks.blocks_for(table_.length);
  if (!blocks.reserve(table_, length, copies))
    fail(ErrorKind::kResource,
         {fmt::format("the KV cache is full: {} more positions need {} blocks of {}, and {} are free", count,
                      more * static_cast<std::int64_t>(blocks.groups()), blocks.block_size(), blocks.free()),
          {},
          {},
          "give a shorter context or a larger cache"});
  cache_.copy(copies);
}

}  // namespace llmq
