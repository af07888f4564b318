#include "runtime/answer_text.h"

#include <algorithm>
#include <utility>

namespace llmq {

AnswerText::AnswerText(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt,
                       std::vector<std::string> stops)
    : tokenizer_(&tokenizer), stops_(std::move(stops)) {
  const auto last_shown =
      std::find_if_not(prompt.rbegin(), prompt.rend(), [&](std::int32_t token) { return is_special(token); });
  if (last_shown != prompt.rend()) previous_ = *last_shown;
}

bool AnswerText::is_special(std::int32_t token) const {
  const std::span<const std::int32_t> one(&token, 1);
  return tokenizer_->decode(one, true).empty() && !tokenizer_->decode(one, false).empty();
}

// A token's own bytes: what it adds behind the last one that is shown (SentencePiece drops a leading space at
// the start of a text only, and special tokens are no text).
std::string AnswerText::bytes_of(std::int32_t token) {
  if (is_special(token)) return {};
  const std::int32_t pair[] = {previous_, token};
  const std::string before = tokenizer_->decode(std::span(pair).first(1), true);
  const std::string both = tokenizer_->decode(pair, true);
  previous_ = token;
  return both.starts_with(before) ? both.substr(before.size())
                                  : tokenizer_->decode(std::span(pair).last(1), true);
}

std::string AnswerText::push(std::int32_t token, bool may_stop) {
  return characters_.push(stops_.push(bytes_of(token), may_stop));
}

std::string AnswerText::finish() {
  std::string rest = stops_.stopped() ? std::string() : characters_.push(stops_.finish());
  return rest + characters_.finish();
}

}  // namespace llmq
