#include "grammar/token_pieces.h"

#include <algorithm>
#include <numeric>

#include "tokenizer/token_bytes.h"

namespace llmq {
namespace {

// longer ones (runs of blanks, pages of dashes) are not needed to write a text
constexpr std::size_t kLongestToken = 1u << 12;

}  // namespace

TokenPieces::TokenPieces(const Tokenizer& tokenizer) {
  const TokenBytes behind(tokenizer);
  begins_.push_back(0);
  for (std::int32_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    const std::string alone = tokenizer.decode(std::span(&id, 1), true);
    std::string piece =
        alone.empty() && !tokenizer.decode(std::span(&id, 1), false).empty() ? std::string() : behind(id);
    if (piece.size() > kLongestToken) piece.clear();
    text_ += piece;
    begins_.push_back(static_cast<std::uint32_t>(text_.size()));
    differs_at_start_.push_back(piece != alone);
    if (piece.size() == 1) writable_[static_cast<std::uint8_t>(piece[0])] = true;
  }
  build_tree();
}

std::string_view TokenPieces::bytes(std::int32_t token) const {
  if (token < 0 || static_cast<std::size_t>(token) >= tokens()) return {};
  const auto at = static_cast<std::size_t>(token);
  return std::string_view(text_).substr(begins_[at], begins_[at + 1] - begins_[at]);
}

void TokenPieces::build_tree() {
  ordered_.resize(tokens());
  std::iota(ordered_.begin(), ordered_.end(), 0);
  std::erase_if(ordered_, [this](std::int32_t token) { return bytes(token).empty(); });
  std::stable_sort(ordered_.begin(), ordered_.end(),
                   [this](std::int32_t a, std::int32_t b) { return bytes(a) < bytes(b); });
  std::vector<std::uint32_t> path;  // nodes of the bytes so far
  const auto leave = [&](std::size_t depth) {
    for (; path.size() > depth; path.pop_back())
      nodes_[path.back()].end = static_cast<std::uint32_t>(nodes_.size());
  };
  std::string_view before;
  for (std::size_t i = 0; i < ordered_.size(); ++i) {
    const std::string_view piece = bytes(ordered_[i]);
    const auto common = static_cast<std::size_t>(
        std::mismatch(before.begin(), before.end(), piece.begin(), piece.end()).first - before.begin());
    leave(common);
    for (std::size_t depth = common; depth < piece.size(); ++depth) {
      path.push_back(static_cast<std::uint32_t>(nodes_.size()));
      nodes_.push_back({0, static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i),
                        static_cast<std::uint16_t>(depth + 1), static_cast<std::uint8_t>(piece[depth])});
    }
    // a shorter piece comes before what begins with it, so only equal ones meet here
    nodes_[path.back()].last = static_cast<std::uint32_t>(i + 1);
    longest_ = std::max(longest_, piece.size());
    before = piece;
  }
  leave(0);
}

void TokenPieces::mark_allowed(TextAutomaton& automaton, TextAutomaton::State from,
                               std::span<std::uint64_t> bits) const {
  std::vector<TextAutomaton::State> states(longest_ + 1, TextAutomaton::kDead);
  states[0] = from;
  for (std::size_t i = 0; i < nodes_.size();) {
    const Node& node = nodes_[i];
    const TextAutomaton::State state = automaton.step(states[node.depth - 1u], node.byte);
    if (state == TextAutomaton::kDead) {
      i = node.end;
      continue;
    }
    states[node.depth] = state;
    for (std::uint32_t at = node.first; at < node.last; ++at) {
      const auto token = static_cast<std::size_t>(ordered_[at]);
      if (token / 64 < bits.size()) bits[token / 64] |= std::uint64_t{1} << token % 64;
    }
    ++i;
  }
}

}  // namespace llmq
