// Byte-pair encoding of one word: its characters (or bytes) as symbols, then, while any two neighbours have a
// merge, the merge of lowest rank, leftmost first.
//
// Short words are scanned, long ones go through a queue of ranks; words already seen come from a cache that
// the caller owns. Where no merge can ever reach across the border of two characters, the word is cut there
// first: the parts merge as they would have in the whole. Vocabularies whose tokens join words leave long
// parts; those are cut once more, looking at more characters around each border. Source: Hugging Face
// tokenizers, models/bpe.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/utf8.h"
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

// A set of hashed keys in a table of bits, a power of two of them: what was never added may seem to be there.
inline bool has_bit(const std::vector<std::uint64_t>& table, std::uint64_t key) {
  const std::uint64_t bit = (key * 0x9e3779b97f4a7c15u) >> 40 & (table.size() * 64 - 1);
  return (table[bit / 64] >> (bit % 64) & 1) != 0;
}
inline void set_bit(std::vector<std::uint64_t>& table, std::uint64_t key) {
  const std::uint64_t bit = (key * 0x9e3779b97f4a7c15u) >> 40 & (table.size() * 64 - 1);
  table[bit / 64] |= std::uint64_t{1} << (bit % 64);
}

// The last characters of a text, newest first, and the keys of the runs that they end.
class LastCharacters {
 public:
  static constexpr std::size_t kLongestRun = 6;
  void add(char32_t character) {
    for (std::size_t i = kLongestRun - 1; i > 0; --i) last_[i] = last_[i - 1];
    last_[0] = character;
  }
  char32_t operator[](std::size_t back) const { return last_[back]; }
  // act(length, key) for the runs of 2 to `longest` characters that end here.
  template <typename Act>
  void each_run(std::size_t longest, const Act& act) const {
    std::uint64_t key = last_[0];
    for (std::size_t length = 2; length <= longest; ++length) {
      key = key * 0xd6e8feb86659fd93u + last_[length - 1];
      act(length, key + length);
    }
  }

 private:
  std::array<char32_t, kLongestRun> last_{};
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
  bool may_cut(char32_t left, char32_t right) const;
  std::int32_t id_of_character(std::string_view character) const;
  void start_symbols(std::string_view word, std::vector<std::int32_t>& symbols) const;
  void start_character(std::string_view character, std::vector<std::int32_t>& symbols,
                       bool& unknown_pending) const;
  void merge_all(std::vector<std::int32_t>& symbols) const;
  void merge_short(std::vector<std::int32_t>& symbols) const;
  template <typename Queue>
  void merge_long(std::vector<std::int32_t>& symbols, Queue queue) const;
  void encode_part(std::string_view part, WordCache* cache, bool whole, std::vector<std::int32_t>& out) const;
  void encode_long(std::string_view part, WordCache* cache, std::vector<std::int32_t>& out) const;
  CodePoint character_at(std::string_view word, std::size_t at) const;

  StringIndex index_;
  std::vector<std::string> tokens_;
  std::vector<bool> present_;
  std::vector<Merge> merges_;            // open addressing
  std::vector<std::int32_t> merge_ids_;  // by rank
  // A bit per hashed pair of neighbours that occurs inside a merged token; a bit per hashed run of characters
  // that is such a token, or kLongestRun characters inside one.
  std::vector<std::uint64_t> borders_, runs_;
  std::array<std::int32_t, 256> byte_ids_{};      // byte-level: the letter's id; -1: not in the vocabulary
  std::array<std::int32_t, 128> ascii_ids_{};     // the character's id; -1: not in the vocabulary
  std::array<std::int32_t, 256> fallback_ids_{};  // "<0x..>"; -1: not in the vocabulary
  std::int32_t unknown_ = -1;
  bool byte_level_ = false, byte_fallback_ = false, fuse_unknown_ = false, ignore_merges_ = false;
  bool can_cut_ = false;  // merges join only characters that stand side by side in the word
  bool cut_all_ = false;  // every character has a symbol whatever stands beside it
};

}  // namespace llmq
