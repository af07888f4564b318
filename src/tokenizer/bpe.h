// Byte-pair encoding of one word: its characters (or bytes) as symbols, then, while any two neighbours have a
// merge, the merge of lowest rank, leftmost first.
//
// Short words are scanned, long ones go through a queue of ranks; words already seen come from a cache that
// the caller owns. Where no merge can ever reach across the border of two characters, the word is cut there
// first: the parts merge as they would have in the whole. Source: Hugging Face tokenizers, models/bpe.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "tokenizer/string_index.h"

namespace llmq {

// Words of one encode() call and their ids; bounded.
class WordCache {
 public:
  struct Ids {
    const std::int32_t* first;
    std::uint32_t count;
  };
  static constexpr std::size_t kLongestWord = 48;

  const Ids* find(std::string_view word, std::uint64_t hash);
  void insert(std::string_view word, std::uint64_t hash, const std::int32_t* ids, std::uint32_t count);

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t word = 0, ids = 0;  // offsets
    std::uint32_t size = 0, count = 0;
  };
  Slot& slot_of(std::string_view word, std::uint64_t hash);
  std::vector<Slot> slots_;
  std::string words_;
  std::vector<std::int32_t> ids_;
  std::size_t used_ = 0;
  Ids found_{};
};

class Bpe {
 public:
  // `model` of tokenizer.json. `byte_level`: words are bytes, each a letter of GPT-2's byte alphabet in the
  // vocabulary.
  static Bpe parse(const Json& model, bool byte_level, const std::string& file);

  void encode(std::string_view word, WordCache& cache, std::vector<std::int32_t>& out) const;
  std::optional<std::int32_t> id_of(std::string_view token) const { return index_.find(token); }
  // Tokens by id; empty where `has` is false.
  const std::vector<std::string>& tokens() const { return tokens_; }
  bool has(std::int32_t id) const {
    return id >= 0 && static_cast<std::size_t>(id) < present_.size() &&
           present_[static_cast<std::size_t>(id)];
  }
  std::size_t vocabulary_entries() const { return index_.size(); }

 private:
  struct Merge {
    std::uint64_t pair = 0;
    std::uint32_t rank = 0;
    std::int32_t id = -1;
  };
  static constexpr std::uint32_t kNoRank = 0xffffffffu;

  void read_vocabulary(const Json& vocab, const std::string& file);
  void read_merges(const Json& merges, const std::string& file);
  void add_merge(std::string_view left, std::string_view right, std::uint32_t rank, const std::string& file);
  void note_borders(std::string_view token);
  const Merge* find_merge(std::int32_t left, std::int32_t right) const;
  bool may_join(char32_t left, char32_t right) const;
  void start_symbols(std::string_view word, std::vector<std::int32_t>& symbols) const;
  void start_character(std::string_view character, std::vector<std::int32_t>& symbols,
                       bool& unknown_pending) const;
  void merge_all(std::vector<std::int32_t>& symbols) const;
  void merge_short(std::vector<std::int32_t>& symbols) const;
  template <typename Queue>
  void merge_long(std::vector<std::int32_t>& symbols, Queue queue) const;
  void encode_part(std::string_view part, WordCache* cache, bool whole, std::vector<std::int32_t>& out) const;

  StringIndex index_;
  std::vector<std::string> tokens_;
  std::vector<bool> present_;
  std::vector<Merge> merges_;            // open addressing
  std::vector<std::int32_t> merge_ids_;  // by rank
  std::vector<std::uint64_t>
      borders_;  // a bit per hashed pair of neighbours that occurs inside a merged token
  std::array<std::int32_t, 256> byte_ids_{};      // byte-level: the letter's id; -1: not in the vocabulary
  std::array<std::int32_t, 256> fallback_ids_{};  // "<0x..>"; -1: not in the vocabulary
  std::int32_t unknown_ = -1;
  bool byte_level_ = false, byte_fallback_ = false, fuse_unknown_ = false, ignore_merges_ = false;
  bool can_cut_ = false;  // every character has a symbol whatever stands beside it
};

}  // namespace llmq
