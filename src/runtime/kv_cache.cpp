#include "runtime/kv_cache.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace llmq {
namespace {

std::int32_t block_count(std::int64_t tokens, int block_size) {
  if (tokens < 1 || block_size < 1)
    fail(ErrorKind::kUsage, "a KV cache of {} positions in blocks of {} holds nothing", tokens, block_size);
  const std::int64_t blocks = (tokens - 1) / block_size + 1;
  if (blocks > INT32_MAX)
    fail(ErrorKind::kResource, "a KV cache of {} blocks is beyond what a table can name", blocks);
  return static_cast<std::int32_t>(blocks);
}

}  // namespace

KvWindow kv_window(const ModelSpec& spec) {
  KvWindow window{0, kAttentionTile};
  for (const BlockSpec& block : spec.blocks) {
    if (block.pages.window <= 0) return {};
    window.positions = std::max(window.positions, block.pages.window);
  }
  return window;
}

KvCache::KvCache(const ModelSpec& spec, Backend& backend, KvType type, std::int64_t tokens, int block_size,
                 bool prefix_caching)
    : KvCache(spec, std::vector<Backend*>(spec.blocks.size(), &backend), type, tokens, block_size,
              prefix_caching) {}

KvCache::KvCache(const ModelSpec& spec, std::vector<Backend*> backends, KvType type, std::int64_t tokens,
                 int block_size, bool prefix_caching)
    : members_(backends.size() / std::max<std::size_t>(1, spec.blocks.size())),
      backends_(std::move(backends)),
      blocks_(block_count(tokens, block_size), block_size, prefix_caching, kv_window(spec)) {
  const std::int64_t blocks = blocks_.total();
  const auto pages_of = [&](Backend& backend, const PagesSpec& layer, std::int64_t head_bytes) {
    const auto bytes = checked_mul(static_cast<std::uint64_t>(blocks * block_size),
                                   static_cast<std::uint64_t>(layer.kv_heads * head_bytes));
    if (!bytes) fail(ErrorKind::kResource, "a KV cache of {} positions exceeds the address space", tokens);
    const Buffer& pages = storage_.emplace_back(backend.allocate(*bytes));
    return type.packed ? pages.view(DType::kU8, {blocks, layer.kv_heads, block_size, head_bytes})
                       : pages.view(type.plain, {blocks, block_size, layer.kv_heads, layer.head_dim});
  };
  for (std::size_t place = 0; place < backends_.size(); ++place) {
    const PagesSpec& layer = spec.blocks[place / members_].pages;
    Backend& backend = *backends_[place];
    const TensorView keys = pages_of(backend, layer, type.key_bytes(layer.head_dim)),
                     values = pages_of(backend, layer, type.value_bytes(layer.head_dim));
    pages_.push_back({keys, values, block_size, type.packed});
  }
}

const KvPages& KvCache::pages(int layer, std::size_t member) const {
  return pages_.at(static_cast<std::size_t>(layer) * members_ + member);
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

void KvCache::read(std::int32_t block, std::byte* to) const {
  for (std::size_t place = 0; place < pages_.size(); ++place)
    for (const TensorView& all : {pages_[place].keys, pages_[place].values}) {
      const TensorView page = page_of(all, block);
      backends_[place]->download(to, page);
      to += page.bytes();
    }
}

void KvCache::write(std::int32_t block, const std::byte* from) {
  for (std::size_t place = 0; place < pages_.size(); ++place)
    for (const TensorView& all : {pages_[place].keys, pages_[place].values}) {
      const TensorView page = page_of(all, block);
      backends_[place]->upload(page, from);
      from += page.bytes();
    }
}

void KvCache::copy(std::span<const BlockCopy> copies) {
  for (const BlockCopy& copy : copies)
    for (std::size_t place = 0; place < pages_.size(); ++place)
      for (const TensorView& all : {pages_[place].keys, pages_[place].values})
        exchange_.copy(*backends_[place], page_of(all, copy.from), *backends_[place], page_of(all, copy.to));
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
  if (!blocks.reserve(table_, table_.length + count, copies))
    fail(ErrorKind::kResource,
         ErrorDetail{
             fmt::format(
                 "the KV cache is full: {} more positions need {} blocks of {}, and {} are free", count,
                 blocks.blocks_for(table_.length + count) - static_cast<std::int64_t>(table_.blocks.size()),
                 blocks.block_size(), blocks.free()),
             {},
             {},
             "give a shorter context or a larger cache"});
  cache_.copy(copies);
}

}  // namespace llmq
