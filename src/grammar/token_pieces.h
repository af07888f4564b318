// The tokens of a vocabulary by the bytes they add to a text, as a tree: one walk finds all that may follow.
//
// Cost: the tree has a node for every different beginning of a token and is walked only as
// far as texts may go on.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/text_automaton.h"
#include "tokenizer/tokenizer.h"

namespace llmq {

class TokenPieces {
 public:
  // Special tokens, which are no text, have no bytes here, and are never allowed.
  explicit TokenPieces(const Tokenizer& tokenizer);

  std::size_t tokens() const { return begins_.size() - 1; }
  std::string_view bytes(std::int32_t token) const;  // none for special tokens and for ids that are none
  // Adds other bytes where nothing stands before it (some tokenizers drop a text's first blank).
  bool differs_at_start(std::int32_t token) const {
    return differs_at_start_[static_cast<std::size_t>(token)];
  }
  const ByteSet& writable() const { return writable_; }  // bytes that are a token
  // Sets bit i where token i leads from `from` to a state that is not dead. The automaton's budgets hold for
  // the walk.
  void mark_allowed(TextAutomaton& automaton, TextAutomaton::State from, std::span<std::uint64_t> bits) const;

 private:
  struct Node {
    std::uint32_t end;          // of the nodes that begin with this one
    std::uint32_t first, last;  // tokens of exactly these bytes, in ordered_
    std::uint16_t depth;        // bytes; the root has 0 and is not there
    std::uint8_t byte;
  };
  void build_tree();

  std::string text_;  // bytes of all tokens
  std::vector<std::uint32_t> begins_;
  std::vector<bool> differs_at_start_;
  std::vector<std::int32_t> ordered_;  // by their bytes
  std::vector<Node> nodes_;            // a node, then all that begin with it
  std::size_t longest_ = 0;
  ByteSet writable_{};
};

}  // namespace llmq
