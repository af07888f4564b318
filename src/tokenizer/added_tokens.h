// The added_tokens of tokenizer.json: strings found in the text before, and beside, the model's own pieces.
//
// Tokens with normalized = false are looked for in the text as it came, the others (in their normalized form)
// in the normalized text between those. Leftmost match first, longest among those; lstrip and rstrip take in
// white space, single_word refuses matches inside words. Source: Hugging Face tokenizers,
// tokenizer/added_vocabulary.rs.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llmq {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  std::string decoded;  // normalized form, which is what decoders see
  bool single_word = false, lstrip = false, rstrip = false, normalized = false, special = false;
};

// A stretch of text: an added token, or text for the model.
struct AddedSpan {
  std::size_t begin, end;
  std::optional<std::int32_t> id;
};

class AddedTokenFinder {
 public:
  void add(std::string_view pattern, const AddedToken& token);
  bool empty() const { return nodes_.size() <= 1; }
  // Covers `text` in order; empty stretches are left out.
  std::vector<AddedSpan> find(std::string_view text) const;

 private:
  struct Node {
    std::int32_t token = -1;                                        // index into tokens_
    std::vector<std::pair<unsigned char, std::uint32_t>> children;  // few; searched in order
  };
  struct Match {
    std::size_t end;
    const AddedToken* token;
  };
  std::optional<Match> longest_at(std::string_view text, std::size_t begin) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<AddedToken> tokens_;
  bool starts_[256] = {};
};

}  // namespace llmq
