#include "runtime/answer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"

namespace llmq {

Answer::Answer(std::shared_ptr<const GenerationRequest> request, int index, const Tokenizer* tokenizer,
               std::vector<std::int32_t> model_ends)
    : request_(std::move(request)),
      index_(index),
      ends_(request_->stop_tokens),
      sampling_(request_->sampling),
      penalties_(sampling_, request_->prompt) {
  if (!request_->ignore_eos) ends_.insert(ends_.end(), model_ends.begin(), model_ends.end());
  sampling_.seed = answer_seed(sampling_.seed, index);
  sampling_.logit_bias.clear();  // the penalties have it
  if (tokenizer) text_.emplace(*tokenizer, request_->prompt, request_->stop);
  if (request_->constraint) constrained_.emplace(request_->constraint, text_ && text_->empty());
}

std::optional<TokenDraw> Answer::plain_draw(std::uint64_t ahead) const {
  const bool several = drawn_ == 0 && request_->n > 1;  // the other answers draw from the same row
  if (several || request_->logprobs || changes_logits()) return std::nullopt;
  return whole_row_draw(sampling_, drawn_ + ahead);
}

bool Answer::changes_logits() const { return is_early() || constrained_ || !penalties_.none(); }

Answer::Row Answer::prepare(std::span<float> logits, std::vector<float>& own) {
  Row row{logits, logits, 0, {}};
  const bool changes = changes_logits();
  if (request_->logprobs) {
    row.log_sum = log_sum(logits);
    if (changes) {
      own.assign(logits.begin(), logits.end());
      row.own = own;
    }
  }
  if (!changes) return row;
  penalties_.apply(logits);
  try {
    if (constrained_) constrained_->allow_only(constrained_->state(), logits, ends_);
  } catch (const Error& error) {
    row.failure = error.detail().message;
  }
  if (is_early())
    for (const std::int32_t token : ends_)
      if (token >= 0 && static_cast<std::size_t>(token) < logits.size())
        logits[static_cast<std::size_t>(token)] = -std::numeric_limits<float>::infinity();
  return row;
}

bool Answer::take(const Row& row, std::int32_t token, GenerationEvent& event) {
  if (drawn_++ == 0) event.prompt_logprobs = std::move(prompt_logprobs);
  failure_ = row.failure;
  if (!failure_.empty()) return true;
  const bool ends = std::find(ends_.begin(), ends_.end(), token) != ends_.end();
  if (!ends && !follow(token)) return true;
  event.tokens.push_back(token);
  if (const auto& asked = request_->logprobs) {
    TokenLogprobs& entry = event.logprobs.emplace_back();
    entry.chosen = {token, static_cast<double>(row.own[static_cast<std::size_t>(token)]) - row.log_sum};
    entry.likeliest = likeliest_logprobs(row.own, row.log_sum, *asked);
  }
  if (ends) return true;  // it is no text
  penalties_.push(token);
  if (text_) event.text += text_->push(token, std::cmp_greater(drawn_, request_->min_tokens));
  return (text_ && text_->stopped()) || (constrained_ && constrained_->complete());
}

// A budget can be exceeded here; and a model whose logits are no numbers draws tokens that may not follow.
bool Answer::follow(std::int32_t token) {
  if (!constrained_) return true;
  try {
    constrained_->push(token);
  } catch (const Error& error) {
    failure_ = error.detail().message;
  }
  return failure_.empty();
}

void Answer::finish(FinishReason reason, GenerationEvent& event) {
  if (text_) event.text += text_->finish();
  event.finish = failed() ? FinishReason::kFailed : reason;
  event.failure = failure_;
}

}  // namespace llmq
