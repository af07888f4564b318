// Encoding; reading the model is in bpe_parse.cpp.
//
// A word of n symbols: up to kShort is scanned for its best pair again and again (all of it stays in the
// first-level cache); one up to kMedium has a heap; a longer one keeps, for every rank in play, the places
// where that pair was seen, and takes ranks in order. Each merge makes at most two new places, so there are
// at most 3n of them; places of one rank are sorted once when it comes up. Entries outlive their pair and are
// checked against the symbols when taken.
#include "tokenizer/bpe.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "base/utf8.h"
#include "tokenizer/byte_alphabet.h"

namespace llmq {
namespace {

constexpr std::size_t kShort = 24;
constexpr std::size_t kMedium = 1u << 14;
constexpr std::size_t kCutFrom = 64;  // byte-level words shorter than this are not worth cutting

}  // namespace

const Bpe::Merge* Bpe::find_merge(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair =
      static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  const std::size_t mask = merges_.size() - 1;
  for (std::size_t i = (pair * 0x9e3779b97f4a7c15u) >> 32 & mask;; i = (i + 1) & mask) {
    const Merge& merge = merges_[i];
    if (merge.id < 0) return nullptr;
    if (merge.pair == pair) return &merge;
  }
}

CodePoint Bpe::character_at(std::string_view word, std::size_t at) const {
  return byte_level_ ? CodePoint{static_cast<unsigned char>(word[at]), 1} : read_utf8(word, at);
}

bool Bpe::may_join(char32_t left, char32_t right) const {
  return has_bit(borders_, static_cast<std::uint64_t>(left) << 32 | right);
}

std::int32_t Bpe::id_of_character(std::string_view character) const {
  const unsigned char first = static_cast<unsigned char>(character[0]);
  return first < 128 ? ascii_ids_[first] : index_.find(character).value_or(-1);
}

// Next to a character without a token a cut may change ids: unknown ones fuse, and fallbacks overtake them.
bool Bpe::may_cut(char32_t left, char32_t right) const {
  const auto has_token = [&](char32_t c) {
    if (c < 128) return ascii_ids_[c] >= 0;
    std::string text;
    append_utf8(text, c);
    return index_.find(text).has_value();
  };
  return cut_all_ || (has_token(left) && has_token(right));
}

void Bpe::start_character(std::string_view character, std::vector<std::int32_t>& symbols,
                          bool& unknown_pending) const {
  // `unknown_pending`: the last unknown has not been written yet; a fallback after it overtakes it, as in
  // Hugging Face's code.
  const auto flush = [&] {
    if (unknown_pending) symbols.push_back(unknown_);
    unknown_pending = false;
  };
  if (const std::int32_t id = id_of_character(character); id >= 0) {
    flush();
    symbols.push_back(id);
    return;
  }
  if (byte_fallback_) {
    const bool whole = std::all_of(character.begin(), character.end(), [&](char byte) {
      return fallback_ids_[static_cast<unsigned char>(byte)] >= 0;
    });
    if (whole) {
      for (const char byte : character) symbols.push_back(fallback_ids_[static_cast<unsigned char>(byte)]);
      return;
    }
  }
  if (unknown_ < 0) return;  // left out, as Hugging Face does
  if (!fuse_unknown_) flush();
  unknown_pending = true;
}

void Bpe::start_symbols(std::string_view word, std::vector<std::int32_t>& symbols) const {
  symbols.clear();
  bool unknown_pending = false;
  if (byte_level_) {
    std::string letter;
    for (const char c : word) {
      const unsigned char byte = static_cast<unsigned char>(c);
      if (byte_ids_[byte] >= 0 && !unknown_pending) {
        symbols.push_back(byte_ids_[byte]);
        continue;
      }
      letter.clear();
      append_utf8(letter, byte_to_letter(byte));
      start_character(letter, symbols, unknown_pending);
    }
  } else {
    for (std::size_t i = 0; i < word.size();) {
      const unsigned bytes = read_utf8(word, i).bytes;
      start_character(word.substr(i, bytes), symbols, unknown_pending);
      i += bytes;
    }
  }
  if (unknown_pending) symbols.push_back(unknown_);
}

void Bpe::merge_short(std::vector<std::int32_t>& symbols) const {
  std::array<std::uint32_t, kShort> ranks;  // of the pair that begins here
  std::size_t n = symbols.size();
  const auto rank_at = [&](std::size_t i) {
    if (i + 1 >= n) return kNoRank;
    const Merge* merge = find_merge(symbols[i], symbols[i + 1]);
    return merge == nullptr ? kNoRank : merge->rank;
  };
  for (std::size_t i = 0; i < n; ++i) ranks[i] = rank_at(i);
  while (n > 1) {
    const std::size_t best = static_cast<std::size_t>(
        std::min_element(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(n - 1)) - ranks.begin());
    if (ranks[best] == kNoRank) break;
    symbols[best] = merge_ids_[ranks[best]];
    for (std::size_t i = best + 1; i + 1 < n; ++i) {
      symbols[i] = symbols[i + 1];
      ranks[i] = ranks[i + 1];
    }
    --n;
    ranks[best] = rank_at(best);
    if (best > 0) ranks[best - 1] = rank_at(best - 1);
  }
  symbols.resize(n);
}

namespace {

// Places by rank, lowest rank first and leftmost first within it.
class RankQueue {
 public:
  explicit RankQueue(std::size_t ranks) : slot_of_rank_(ranks, kNone) {}

  void push(std::uint32_t rank, std::uint32_t place) {
    std::uint32_t& slot = slot_of_rank_[rank];
    if (slot == kNone) {
      if (free_.empty()) {
        free_.push_back(static_cast<std::uint32_t>(buckets_.size()));
        buckets_.emplace_back();
      }
      slot = free_.back();
      free_.pop_back();
      order_.push(rank);
    }
    Bucket& bucket = buckets_[slot];
    if (bucket.is_heap) {
      bucket.places.push_back(place);
      std::push_heap(bucket.places.begin(), bucket.places.end(), std::greater<>());
      return;
    }
    if (bucket.taken > 0) {  // a rank that grows while it is taken from: rare, so a heap will do
      bucket.places.erase(bucket.places.begin(),
                          bucket.places.begin() + static_cast<std::ptrdiff_t>(bucket.taken));
      bucket.taken = 0;
      bucket.is_heap = true;
      bucket.places.push_back(place);
      std::make_heap(bucket.places.begin(), bucket.places.end(), std::greater<>());
      return;
    }
    bucket.is_sorted = bucket.is_sorted && (bucket.places.empty() || bucket.places.back() <= place);
    bucket.places.push_back(place);
  }

  bool pop(std::uint32_t& rank, std::uint32_t& place) {
    while (!order_.empty()) {
      rank = order_.top();
      Bucket& bucket = buckets_[slot_of_rank_[rank]];
      if (bucket.taken < bucket.places.size()) {
        place = take(bucket);
        return true;
      }
      bucket = Bucket{std::move(bucket.places), 0, true, false};
      bucket.places.clear();
      free_.push_back(slot_of_rank_[rank]);
      slot_of_rank_[rank] = kNone;
      order_.pop();
    }
    return false;
  }

 private:
  static constexpr std::uint32_t kNone = 0xffffffffu;
  struct Bucket {
    std::vector<std::uint32_t> places;
    std::size_t taken = 0;
    bool is_sorted = true, is_heap = false;
  };

  static std::uint32_t take(Bucket& bucket) {
    if (bucket.is_heap) {
      std::pop_heap(bucket.places.begin(), bucket.places.end(), std::greater<>());
      const std::uint32_t place = bucket.places.back();
      bucket.places.pop_back();
      return place;
    }
    if (!bucket.is_sorted) std::sort(bucket.places.begin(), bucket.places.end());
    bucket.is_sorted = true;
    return bucket.places[bucket.taken++];
  }

  std::vector<std::uint32_t> slot_of_rank_, free_;
  std::vector<Bucket> buckets_;
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> order_;
};

// The same by one heap: better than a bucket per rank while all of it is near.
class PlaceHeap {
 public:
  void push(std::uint32_t rank, std::uint32_t place) {
    entries_.push_back(static_cast<std::uint64_t>(rank) << 32 | place);
    std::push_heap(entries_.begin(), entries_.end(), std::greater<>());
  }
  bool pop(std::uint32_t& rank, std::uint32_t& place) {
    if (entries_.empty()) return false;
    std::pop_heap(entries_.begin(), entries_.end(), std::greater<>());
    rank = static_cast<std::uint32_t>(entries_.back() >> 32);
    place = static_cast<std::uint32_t>(entries_.back());
    entries_.pop_back();
    return true;
  }

 private:
  std::vector<std::uint64_t> entries_;
};

}  // namespace

template <typename Queue>
void Bpe::merge_long(std::vector<std::int32_t>& symbols, Queue queue) const {
  const std::uint32_t n = static_cast<std::uint32_t>(symbols.size());
  // Neighbours by place; a merged-away symbol is -1. n stands for "none" on the right.
  std::vector<std::uint32_t> next(n), previous(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    next[i] = i + 1;
    previous[i] = i == 0 ? n : i - 1;
    if (i + 1 < n)
      if (const Merge* merge = find_merge(symbols[i], symbols[i + 1])) queue.push(merge->rank, i);
  }
  std::uint32_t rank = 0, place = 0;
  while (queue.pop(rank, place)) {
    if (symbols[place] < 0 || next[place] == n) continue;
    const std::uint32_t right = next[place];
    const Merge* now = find_merge(symbols[place], symbols[right]);
    if (now == nullptr || now->rank != rank) continue;
    symbols[place] = now->id;
    symbols[right] = -1;
    next[place] = next[right];
    if (next[place] != n) {
      previous[next[place]] = place;
      if (const Merge* merge = find_merge(symbols[place], symbols[next[place]]))
        queue.push(merge->rank, place);
    }
    if (previous[place] != n)
      if (const Merge* merge = find_merge(symbols[previous[place]], symbols[place]))
        queue.push(merge->rank, previous[place]);
  }
  symbols.erase(std::remove(symbols.begin(), symbols.end(), -1), symbols.end());
}

void Bpe::merge_all(std::vector<std::int32_t>& symbols) const {
  if (symbols.size() < 2 || merge_ids_.empty()) return;
  if (symbols.size() <= kShort)
    merge_short(symbols);
  else if (symbols.size() <= kMedium)
    merge_long(symbols, PlaceHeap());
  else
    merge_long(symbols, RankQueue(merge_ids_.size()));
}

void Bpe::encode_part(std::string_view part, WordCache* cache, bool whole,
                      std::vector<std::int32_t>& out) const {
  if (part.size() > WordCache::kLongestWord) cache = nullptr;
  const std::uint64_t hash = cache != nullptr ? hash_bytes(part) : 0;
  if (cache != nullptr)
    if (const WordCache::Ids* ids = cache->find(part, hash)) {
      for (std::uint32_t i = 0; i < ids->count; ++i) out.push_back(ids->first[i]);
      return;
    }
  std::vector<std::int32_t> symbols;
  const auto known = whole && ignore_merges_
                         ? index_.find(byte_level_ ? to_byte_alphabet(part) : std::string(part))
                         : std::nullopt;
  if (known) {
    symbols.assign(1, *known);
  } else {
    start_symbols(part, symbols);
    merge_all(symbols);
  }
  if (cache != nullptr) cache->insert(part, hash, symbols.data(), static_cast<std::uint32_t>(symbols.size()));
  out.insert(out.end(), symbols.begin(), symbols.end());
}

// Cuts where no run of the text that crosses the border stands in a token, as long as a run can be: a token
// across a border is such a run itself, or has one that crosses it. A border is decided when the runs that
// cross it have been seen, kLongestRun - 1 characters on.
void Bpe::encode_long(std::string_view part, WordCache* cache, std::vector<std::int32_t>& out) const {
  constexpr std::size_t kRun = LastCharacters::kLongestRun;
  LastCharacters last;
  std::array<std::size_t, kRun> starts{};  // of those characters
  unsigned crossed = 0;                    // bit k: a run crosses the border before character k, counted back
  std::size_t begin = 0, count = 0;
  const auto decide = [&](std::size_t k) {
    if (count <= k + 1 || (crossed >> k & 1) != 0 || !may_cut(last[k + 1], last[k])) return;
    encode_part(part.substr(begin, starts[k] - begin), cache, false, out);
    begin = starts[k];
  };
  for (std::size_t i = 0; i < part.size();) {
    const CodePoint c = character_at(part, i);
    last.add(c.value);
    for (std::size_t k = kRun - 1; k > 0; --k) starts[k] = starts[k - 1];
    starts[0] = i;
    i += c.bytes;
    ++count;
    crossed <<= 1;
    last.each_run(std::min(count, kRun), [&](std::size_t length, std::uint64_t key) {
      if (has_bit(runs_, key)) crossed |= (1u << (length - 1)) - 1;
    });
    decide(kRun - 2);
  }
  for (std::size_t k = kRun - 2; k-- > 0;) decide(k);
  encode_part(part.substr(begin), cache, false, out);
}

void Bpe::encode(std::string_view word, WordCache& cache, std::vector<std::int32_t>& out) const {
  const bool cut = can_cut_ && word.size() >= (byte_level_ ? kCutFrom : 2);
  if (!cut) return encode_part(word, &cache, true, out);
  if (ignore_merges_) {
    if (const auto id = index_.find(byte_level_ ? to_byte_alphabet(word) : std::string(word))) {
      out.push_back(*id);
      return;
    }
  }
  // With ignore_merges_ the cache holds whole words only: a part equal to one may have other ids.
  WordCache* part_cache = ignore_merges_ ? nullptr : &cache;
  const auto encode_cut = [&](std::string_view part) {
    if (part.size() > WordCache::kLongestWord)
      encode_long(part, part_cache, out);
    else
      encode_part(part, part_cache, false, out);
  };
  std::size_t begin = 0;
  char32_t left = 0;
  for (std::size_t i = 0; i < word.size();) {
    const CodePoint c = character_at(word, i);
    if (i > begin && !may_join(left, c.value) && may_cut(left, c.value)) {
      encode_cut(word.substr(begin, i - begin));
      begin = i;
    }
    left = c.value;
    i += c.bytes;
  }
  encode_cut(word.substr(begin));
}

}  // namespace llmq
