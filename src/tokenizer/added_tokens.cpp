// A trie over bytes. A byte that starts no token is passed in one look; the longest token bounds the work at
// the others.
#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "base/utf8.h"
#include "tokenizer/unicode_classes.h"

namespace llmq {
namespace {

bool word_before(std::string_view text, std::size_t at) {
  return at > 0 && is_class(read_utf8_before(text, at).value, kWordCharacter);
}

bool word_after(std::string_view text, std::size_t at) {
  return at < text.size() && is_class(read_utf8(text, at).value, kWordCharacter);
}

}  // namespace

void AddedTokenFinder::add(std::string_view pattern, const AddedToken& token) {
  if (pattern.empty()) return;
  starts_[static_cast<unsigned char>(pattern[0])] = true;
  std::uint32_t node = 0;
  for (const char c : pattern) {
    const unsigned char byte = static_cast<unsigned char>(c);
    const auto& children = nodes_[node].children;
    const auto child = std::find_if(children.begin(), children.end(),
                                    [&](const auto& entry) { return entry.first == byte; });
    if (child != children.end()) {
      node = child->second;
      continue;
    }
    const std::uint32_t made = static_cast<std::uint32_t>(nodes_.size());
    nodes_[node].children.emplace_back(byte, made);
    nodes_.emplace_back();
    node = made;
  }
  nodes_[node].token = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back(token);
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::longest_at(std::string_view text,
                                                                    std::size_t begin) const {
  std::optional<Match> best;
  std::uint32_t node = 0;
  for (std::size_t i = begin; i < text.size(); ++i) {
    const unsigned char byte = static_cast<unsigned char>(text[i]);
    const auto& children = nodes_[node].children;
    const auto child = std::find_if(children.begin(), children.end(),
                                    [&](const auto& entry) { return entry.first == byte; });
    if (child == children.end()) break;
    node = child->second;
    if (nodes_[node].token >= 0) best = Match{i + 1, &tokens_[static_cast<std::size_t>(nodes_[node].token)]};
  }
  return best;
}

std::vector<AddedSpan> AddedTokenFinder::find(std::string_view text) const {
  std::vector<AddedSpan> spans;
  std::size_t done = 0;
  for (std::size_t i = 0; i < text.size();) {
    if (!starts_[static_cast<unsigned char>(text[i])]) {
      ++i;
      continue;
    }
    const auto match = longest_at(text, i);
    if (!match) {
      ++i;
      continue;
    }
    std::size_t begin = i, end = match->end;
    i = match->end;
    const AddedToken& token = *match->token;
    if (token.single_word && (word_before(text, begin) || word_after(text, end))) continue;
    if (token.lstrip)
      while (begin > done && is_class(read_utf8_before(text, begin).value, kSpace))
        begin -= read_utf8_before(text, begin).bytes;
    if (token.rstrip)
      while (end < text.size() && is_class(read_utf8(text, end).value, kSpace))
        end += read_utf8(text, end).bytes;
    if (done < begin) spans.push_back({done, begin, std::nullopt});
    spans.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) spans.push_back({done, text.size(), std::nullopt});
  return spans;
}

}  // namespace llmq
