// string -> id, for vocabularies: open addressing over strings owned in one block; a lookup is one hash and,
// nearly always, one compare.
#pragma once
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llmq {

// Multiply-xor over 8-byte words; not for keys an attacker may choose without bound (chains are searched
// linearly, so callers cap their number).
inline std::uint64_t hash_bytes(std::string_view bytes) {
  const auto mix = [](std::uint64_t a) {
    a *= 0x9e3779b97f4a7c15u;
    return (a ^ a >> 32) * 0xd6e8feb86659fd93u;
  };
  std::uint64_t hash = bytes.size() * 0xd6e8feb86659fd93u;
  const char* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    hash = mix(hash ^ word);
  }
  std::uint64_t tail = 0;
  for (std::size_t i = 0; i < left; ++i)
    tail |= static_cast<std::uint64_t>(static_cast<unsigned char>(at[i])) << (8 * i);
  const std::uint64_t mixed = mix(hash ^ tail ^ 0xa0761d6478bd642fu);
  return mixed ^ mixed >> 32;
}

class StringIndex {
 public:
  explicit StringIndex(std::size_t expected = 0) {
    std::size_t size = 64;
    while (size < expected * 2) size *= 2;
    slots_.assign(size, Slot{});
  }

  // False when the string is there already; it then keeps its id.
  bool insert(std::string_view text, std::int32_t id) {
    if ((count_ + 1) * 2 > slots_.size()) grow();
    Slot& slot = slot_of(text, hash_bytes(text));
    if (slot.id >= 0) return false;
    slot = {hash_bytes(text), arena_.size(), static_cast<std::uint32_t>(text.size()), id};
    arena_ += text;
    ++count_;
    return true;
  }

  std::optional<std::int32_t> find(std::string_view text) const {
    const Slot& slot = const_cast<StringIndex*>(this)->slot_of(text, hash_bytes(text));
    if (slot.id < 0) return std::nullopt;
    return slot.id;
  }
  std::size_t size() const { return count_; }

 private:
  struct Slot {
    std::uint64_t hash = 0, offset = 0;
    std::uint32_t size = 0;
    std::int32_t id = -1;
  };

  Slot& slot_of(std::string_view text, std::uint64_t hash) {
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t i = hash & mask;; i = (i + 1) & mask) {
      Slot& slot = slots_[i];
      if (slot.id < 0) return slot;
      if (slot.hash == hash && std::string_view(arena_).substr(slot.offset, slot.size) == text) return slot;
    }
  }

  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    const std::size_t mask = slots_.size() - 1;
    for (const Slot& slot : old) {
      if (slot.id < 0) continue;
      std::size_t i = slot.hash & mask;
      while (slots_[i].id >= 0) i = (i + 1) & mask;
      slots_[i] = slot;
    }
  }

  std::vector<Slot> slots_;
  std::string arena_;
  std::size_t count_ = 0;
};

}  // namespace llmq
