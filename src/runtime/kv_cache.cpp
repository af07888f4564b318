#include "runtime/kv_cache.h"

#include <algorithm>
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

bool same_pages(const ModelSpec& spec) {
  return std::all_of(spec.blocks.begin(), spec.blocks.end(), [&](const BlockSpec& block) {
    if (shared_pages(block)) return true;
    const PagesSpec &first = spec.blocks.front().pages, &own = block.pages;
    return own.kv_heads == first.kv_heads && own.head_dim == first.head_dim;
  });
}

KvWindow window_of(const PagesSpec& pages) {
  if (pages.window <= 0) return {};
  return {pages.window, kAttentionTile};
}

// The widest, where all have one.
KvWindow common_window(const ModelSpec& spec) {
  KvWindow widest;
  for (const BlockSpec& block : spec.blocks) {
    const KvWindow own = window_of(block.pages);
    if (shared_pages(block)) continue;
    if (own.positions == 0) return {};
    if (own.positions > widest.positions) widest = own;
  }
  return widest;
}

}  // namespace

PageGroups page_groups(const ModelSpec& spec, bool same_devices) {
  std::vector<KvWindow> kinds;  // of layers, by what they look back
  std::vector<std::size_t> counts, kind_of;
  for (const BlockSpec& block : spec.blocks) {
    if (const auto owner = shared_pages(block)) {
      kind_of.push_back(kind_of.at(*owner));
      continue;
    }
    const KvWindow own = window_of(block.pages);
    const auto kind = static_cast<std::size_t>(
        std::find_if(kinds.begin(), kinds.end(),
                     [&](const KvWindow& known) { return known.positions == own.positions; }) -
        kinds.begin());
    if (kind == kinds.size()) kinds.push_back(own), counts.push_back(0);
    kind_of.push_back(kind);
    ++counts[kind];
  }
  PageGroups groups;
  if (kinds.size() < 2 || !same_devices || !same_pages(spec)) {
    groups.windows = {common_window(spec)};
    groups.layers = spec.blocks.size();
    for (std::size_t layer = 0; layer < groups.layers; ++layer) groups.places.push_back({0, layer});
    return groups;
  }
  for (const std::size_t count : counts) groups.layers = std::gcd(groups.layers, count);
  std::vector<std::size_t> next;  // of each kind, counted through its groups
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    next.push_back(groups.windows.size() * groups.layers);
    groups.windows.insert(groups.windows.end(), counts[kind] / groups.layers, kinds[kind]);
  }
  for (std::size_t layer = 0; layer < kind_of.size(); ++layer) {
    if (const auto owner = shared_pages(spec.blocks[layer])) {
      groups.places.push_back(groups.places.at(*owner));
      continue;
    }
    const std::size_t kind = kind_of[layer];
    groups.places.push_back({next[kind] / groups.layers, next[kind] % groups.layers});
    ++next[kind];
  }
  return groups;
}

std::int64_t kv_positions(const PageGroups& groups, int block_size, std::int64_t positions,
                          std::int64_t step) {
  const auto many = static_cast<std::int64_t>(groups.windows.size());
  return (most_kv_blocks(groups.windows, block_size, positions, step) + many - 1) / many * block_size;
}

KvCache::KvCache(const ModelSpec& spec, Backend& backend, KvType type, std::int64_t tokens, int block_size,
                 bool prefix_caching)
    : KvCache(spec, std::vector<Backend*>(spec.blocks.size(), &backend), type, tokens, block_size,
              prefix_caching) {}

KvCache::KvCache(const ModelSpec& spec, std::vector<Backend*> backends, KvType type, std::int64_t tokens,
                 int block_size, bool prefix_caching)
    : members_(backends.size() / std::max<std::size_t>(1, spec.blocks.size())),
      backends_(std::move(backends)),
      groups_(page_groups(spec, are_on_same_devices(backends_, members_))),
      blocks_(block_count(tokens, block_size, groups_.windows.size()), block_size, prefix_caching,
              groups_.windows) {
  const std::int64_t blocks = blocks_.total();
  const auto pages_of = [&](Backend& backend, const PagesSpec& layer, std::int64_t head_bytes) {
    const auto bytes = checked_mul(static_cast<std::uint64_t>(blocks * block_size),
                                   static_cast<std::uint64_t>(layer.kv_heads * head_bytes));
    if (!bytes) fail(ErrorKind::kResource, "a KV cache of {} positions exceeds the address space", tokens);
    const Buffer& pages = storage_.emplace_back(backend.allocate(*bytes));
    return type.packed ? pages.view(DType::kU8, {blocks, layer.kv_heads, block_size, head_bytes})
                       : pages.view(type.plain, {blocks, block_size, layer.kv_heads, layer.head_dim});
  };
  std::vector<std::size_t> first_of(groups_.layers, spec.blocks.size());  // layer in this place of its group
  for (std::size_t place = 0; place < backends_.size(); ++place) {
    const std::size_t layer = place / members_;
    const std::optional<std::size_t> owner = shared_pages(spec.blocks[layer]);
    if (place % members_ == 0) owners_.push_back(owner.value_or(layer));
    if (owner) {
      pages_.emplace_back();
      continue;
    }
    std::size_t& first = first_of[groups_.places[layer].layer];
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
    const TensorView keys = pages_of(backend, own, type.key_bytes(own.head_dim)),
                     values = pages_of(backend, own, type.value_bytes(own.head_dim));
    pages_.push_back({keys, values, block_size, type.packed});
    stores_.push_back(place);
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

namespace {

TensorView page_of(const TensorView& all, std::int32_t block) {
  TensorView page(all.pointer, all.dtype, {all.shape[1], all.shape[2], all.shape[3]}, all.device);
  page.pointer = all.as<std::byte>() + static_cast<std::uint64_t>(block) * page.bytes();
  return page;
}

}  // namespace

template <class Visit>
void KvCache::each_store(const Visit& visit) const {
  for (const std::size_t place : stores_)
    for (const TensorView* const all : {&pages_[place].keys, &pages_[place].values})
      visit(*backends_[place], *all);
}

void KvCache::read(std::int32_t block, std::byte* to) const {
  each_store([&](Backend& backend, const TensorView& all) {
    const TensorView page = page_of(all, block);
    backend.download(to, page);
    to += page.bytes();
  });
}

void KvCache::write(std::int32_t block, const std::byte* from) {
  each_store([&](Backend& backend, const TensorView& all) {
    const TensorView page = page_of(all, block);
    backend.upload(page, from);
    from += page.bytes();
  });
}

void KvCache::copy(std::span<const BlockCopy> copies) {
  for (const BlockCopy& copy : copies)
    each_store([&](Backend& backend, const TensorView& all) {
      exchange_.copy(backend, page_of(all, copy.from), backend, page_of(all, copy.to));
    });
}

void KvCache::give_swap_space(std::int32_t pages) {
  swapped_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(pages) * page_bytes());
}

void KvCache::swap_out(std::span<const PageSwap> pages) {
  for (const PageSwap& page : pages)
    read(page.block, swapped_.get() + static_cast<std::size_t>(page.slot) * page_bytes());
}

void KvCache::swap_in(std::span<const PageSwap> pages) {
  for (const PageSwap& page : pages)
    write(page.block, swapped_.get() + static_cast<std::size_t>(page.slot) * page_bytes());
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
         ErrorDetail{
             fmt::format("the KV cache is full: {} more positions need {} blocks of {}, and {} are free",
                         count, more * static_cast<std::int64_t>(blocks.groups()), blocks.block_size(),
                         blocks.free()),
             {},
             {},
             "give a shorter context or a larger cache"});
  cache_.copy(copies);
}

}  // namespace llmq
