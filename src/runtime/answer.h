// One answer to a request while it is being written: from rows of logits to tokens, text and log
// probabilities.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "grammar/constraint.h"
#include "model/adapters/prepared_adapter.h"
#include "model/sequence_state.h"
#include "runtime/answer_text.h"
#include "runtime/generation.h"
#include "runtime/penalties.h"
#include "runtime/speculation.h"

namespace llmq {

class Answer {
 public:
  // Answer `index` of a request to a model with these end tokens. Without a tokenizer there is no text.
  Answer(std::shared_ptr<const GenerationRequest> request, int index, const Tokenizer* tokenizer,
         std::vector<std::int32_t> model_ends);

  // One row of logits, ready to be drawn from, and what it was before penalties where log probabilities are
  // asked for.
  struct Row {
    std::span<const float> logits, own;
    double log_sum = 0;
    std::string failure;                     // why nothing can be drawn from it
    std::optional<std::int32_t> drawn = {};  // by the device; there are no logits then
  };
  // How the token after `ahead` more ones is drawn, where nothing but a row of logits as it is decides that;
  // else the row has to be prepared.
  std::optional<TokenDraw> plain_draw(std::uint64_t ahead) const;
  // Penalties, biases, the constraint and the bar on early end tokens change `logits`; what they were goes to
  // `own` where somebody asks for it.
  Row prepare(std::span<float> logits, std::vector<float>& own);
  // The next token of this answer.
  std::int32_t draw(const Row& row) const {
    return row.drawn ? *row.drawn : sample_token(row.logits, sampling_, drawn_);
  }
  // It goes into the event, an end token without text; true where it ends the answer. After a failure it is
  // no token.
  bool take(const Row& row, std::int32_t token, GenerationEvent& event);
  void finish(FinishReason reason, GenerationEvent& event);

  bool failed() const { return !failure_.empty(); }

  const GenerationRequest& request() const { return *request_; }
  const std::shared_ptr<const GenerationRequest>& shared_request() const { return request_; }
  int index() const { return index_; }
  const SamplingOptions& sampling() const { return sampling_; }
  std::uint64_t drawn() const { return drawn_; }
  ConstrainedText* constrained() { return constrained_ ? &*constrained_ : nullptr; }
  std::span<const std::int32_t> ends() const { return ends_; }

  std::int64_t cached = -1;                    // of the prompt, when it started; -1 before
  bool guessed_early = false;                  // guesses for its first token were asked for, with its prompt
  std::size_t event_at = 0;                    // of this step: its place
  std::vector<TokenLogprobs> prompt_logprobs;  // by place, while the prompt is read
  Speculation::Sequence speculation;
  std::unique_ptr<SequenceState> state;            // of what runs now, where the model has one
  std::shared_ptr<const PreparedAdapter> adapter;  // null: the model alone; kept while the answer is written

 private:
  bool is_early() const { return static_cast<std::int64_t>(drawn_) < request_->min_tokens; }
  bool changes_logits() const;
  bool follow(std::int32_t token);

  std::shared_ptr<const GenerationRequest> request_;
  int index_;
  std::vector<std::int32_t> ends_;
  SamplingOptions sampling_;
  Penalties penalties_;
  std::optional<AnswerText> text_;
  std::optional<ConstrainedText> constrained_;
  std::string failure_;
  std::uint64_t drawn_ = 0;
};

}  // namespace llmq
