// The pre-tokenizer expressions of the GPT-2 and of the Llama-3 / Qwen family as hand-written matchers: one
// pass, no backtracking, ten times Oniguruma's speed. They are chosen when the expression is, character for
// character, one of these:
//
//   GPT-2    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   Llama-3  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|  (goes on)
//             ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//   Qwen2    the same with \p{N} for \p{N}{1,3}
//
// Every character belongs to a match, so a match ends where the next one begins. known_patterns_test holds
// them against Oniguruma.
#pragma once
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace llmq {

struct TextRange {
  std::size_t begin, end;
};

enum class KnownPattern { kGpt2, kLlama3, kQwen2 };

extern const std::string_view kGpt2Pattern, kLlama3Pattern, kQwen2Pattern;

std::optional<KnownPattern> known_pattern(std::string_view regex);

// Appends the matches in text[range.begin, range.end), as if nothing lay outside it. `text` is valid UTF-8,
// the range whole characters.
void split_known(KnownPattern pattern, std::string_view text, TextRange range, std::vector<TextRange>& words);

}  // namespace llmq
