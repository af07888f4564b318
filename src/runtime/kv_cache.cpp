#include "runtime/kv_cache.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace llmq {
namespace {

std::int64_t blocks_for(std::int64_t positions, int block_size) {
  return (positions + block_size - 1) / block_size;
}

}  // namespace

KvCache::KvCache(const ModelSpec& spec, Backend& backend, DType dtype, std::int64_t tokens, int block_size)
    : block_size_(block_size) {
  if (tokens < 1 || block_size < 1)
    fail(ErrorKind::kUsage, "a KV cache of {} positions in blocks of {} holds nothing", tokens, block_size);
  const std::int64_t blocks = blocks_for(tokens, block_size);
  if (blocks > INT32_MAX)
    fail(ErrorKind::kResource, "a KV cache of {} blocks is beyond what a table can name", blocks);
  const Shape shape{blocks, block_size, spec.kv_heads, spec.head_dim};
  const auto row_bytes = static_cast<std::uint64_t>(spec.kv_heads * spec.head_dim * element_bytes(dtype));
  const auto bytes = checked_mul(static_cast<std::uint64_t>(blocks * block_size), row_bytes);
  if (!bytes) fail(ErrorKind::kResource, "a KV cache of {} positions exceeds the address space", tokens);
  for (std::size_t layer = 0; layer < spec.blocks.size(); ++layer) {
    const Buffer& keys = storage_.emplace_back(backend.allocate(*bytes));
    const TensorView keys_view = keys.view(dtype, shape);
    const Buffer& values = storage_.emplace_back(backend.allocate(*bytes));
    pages_.push_back({keys_view, values.view(dtype, shape), block_size});
  }
  for (std::int64_t block = blocks; block-- > 0;)
    free_.push_back(static_cast<std::int32_t>(block));  // 0 is taken first
}

std::uint64_t KvCache::open_sequence() {
  constexpr std::size_t kUsualBlocks = 256;  // so that a step of a sequence of usual length allocates nothing
  sequences_[next_].blocks.reserve(std::min(free_.size(), kUsualBlocks));
  return next_++;
}

void KvCache::close_sequence(std::uint64_t sequence) {
  truncate(sequence, 0);
  sequences_.erase(sequence);
}

void KvCache::truncate(std::uint64_t sequence, std::int64_t length) {
  Sequence& entry = sequences_.at(sequence);
  if (length < 0 || length > entry.length)
    fail(ErrorKind::kInternal, "a sequence of {} positions cannot be cut to {}", entry.length, length);
  entry.length = length;
  while (static_cast<std::int64_t>(entry.blocks.size()) > blocks_for(length, block_size_)) {
    free_.push_back(entry.blocks.back());
    entry.blocks.pop_back();
  }
}

std::int64_t KvCache::length(std::uint64_t sequence) const { return sequences_.at(sequence).length; }

void KvCache::append(std::uint64_t sequence, std::int64_t count, std::vector<std::int64_t>& slots) {
  Sequence& entry = sequences_.at(sequence);
  const std::int64_t needed =
      blocks_for(entry.length + count, block_size_) - static_cast<std::int64_t>(entry.blocks.size());
  if (needed > free_blocks())
    fail(ErrorKind::kResource,
         ErrorDetail{
             fmt::format("the KV cache is full: {} more positions need {} blocks of {}, and {} are free",
                         count, needed, block_size_, free_blocks()),
             {},
             {},
             "give a shorter context or a larger cache"});
  for (std::int64_t i = 0; i < needed; ++i) {
    entry.blocks.push_back(free_.back());
    free_.pop_back();
  }
  for (std::int64_t p = entry.length; p < entry.length + count; ++p)
    slots.push_back(std::int64_t{entry.blocks[static_cast<std::size_t>(p / block_size_)]} * block_size_ +
                    p % block_size_);
  entry.length += count;
}

std::span<const std::int32_t> KvCache::block_table(std::uint64_t sequence) const {
  return sequences_.at(sequence).blocks;
}

const KvPages& KvCache::pages(int layer) const { return pages_.at(static_cast<std::size_t>(layer)); }

std::int64_t KvCache::free_blocks() const { return static_cast<std::int64_t>(free_.size()); }

std::size_t KvCache::bytes() const {
  std::size_t sum = 0;
  for (const Buffer& buffer : storage_) sum += buffer.bytes();
  return sum;
}

}  // namespace llmq
