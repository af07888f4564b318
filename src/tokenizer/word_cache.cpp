// Open addressing, at most half full; emptied when it has taken in kMostWords, so that its memory is bounded
// whatever the text.
#include "tokenizer/bpe.h"

namespace llmq {
namespace {
constexpr std::size_t kFirstSlots = 256, kMostWords = 1u << 16;
}

WordCache::Slot& WordCache::slot_of(std::string_view word, std::uint64_t hash) {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = hash & mask;; i = (i + 1) & mask) {
    Slot& slot = slots_[i];
    if (slot.size == 0) return slot;
    if (slot.hash == hash && slot.size == word.size() &&
        std::memcmp(words_.data() + slot.word, word.data(), word.size()) == 0)
      return slot;
  }
}

const WordCache::Ids* WordCache::find(std::string_view word, std::uint64_t hash) {
  if (slots_.empty()) return nullptr;
  const Slot& slot = slot_of(word, hash);
  if (slot.size == 0) return nullptr;
  found_ = {ids_.data() + slot.ids, slot.count};
  return &found_;
}

void WordCache::insert(std::string_view word, std::uint64_t hash, const std::int32_t* ids,
                       std::uint32_t count) {
  if (used_ >= kMostWords) {
    slots_.assign(slots_.size(), Slot{});
    words_.clear();
    ids_.clear();
    used_ = 0;
  }
  if ((used_ + 1) * 2 > slots_.size()) {
    std::vector<Slot> old(slots_.empty() ? kFirstSlots : slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.size == 0) continue;
      std::size_t i = slot.hash & (slots_.size() - 1);
      while (slots_[i].size != 0) i = (i + 1) & (slots_.size() - 1);
      slots_[i] = slot;
    }
  }
  Slot& slot = slot_of(word, hash);
  slot = {hash, static_cast<std::uint32_t>(words_.size()), static_cast<std::uint32_t>(ids_.size()),
          static_cast<std::uint32_t>(word.size()), count};
  words_ += word;
  ids_.insert(ids_.end(), ids, ids + count);
  ++used_;
}

}  // namespace llmq
