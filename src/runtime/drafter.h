// Guesses of what follows a sequence, for a model to verify in one pass: from the sequence itself, or by a
// smaller model.
//
// Guesses decide how fast an answer comes, never what it says. A guess is drawn with the numbers with which
// the model will draw at the same place (sampler.h): so a drafter whose distribution is near the model's
// guesses right often at any temperature, not only at 0.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/constraint.h"
#include "runtime/engine.h"
#include "runtime/sampler.h"
#include "tokenizer/tokenizer.h"

namespace llmq {

struct DraftJob {
  std::uint64_t sequence = 0;  // the same in every step, until forget()
  std::string_view tenant;
  std::span<const std::int32_t> tokens;  // all there are, prompt and answer
  const SamplingOptions* sampling = nullptr;
  std::uint64_t draw = 0;             // of the first guess
  std::int64_t most = 0;              // guesses wanted
  std::vector<std::int32_t> guesses;  // the result: so many or fewer
  // What may follow, for drafters that draw; null: anything. After a guess of `ends` there is nothing to
  // guess.
  ConstrainedText* constrained = nullptr;
  std::span<const std::int32_t> ends = {};
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual std::string name() const = 0;  // for people: "ngram", "draft model"
  virtual void propose(std::span<DraftJob> jobs) = 0;
  virtual void forget(std::uint64_t sequence) = 0;  // unknown ones too
  // Bytes that a guess makes the machine read, beside those that a step of the model reads.
  virtual double bytes_per_guess() const = 0;
};

// What followed the last place where the sequence's last 2 to 4 tokens stood before. Costs a walk over the
// tokens.
std::unique_ptr<Drafter> make_ngram_drafter();
// A model with a cache of its own; what of a prompt it has not read yet it reads `chunk` tokens a step, and
// guesses nothing meanwhile. `vocabulary`: of the model that verifies; guesses are below it. Where its cache
// is full it guesses nothing.
std::unique_ptr<Drafter> make_model_drafter(Engine draft, std::int64_t vocabulary, std::int64_t chunk);
// Error(kBadInput) naming the first token that is not the same piece of text in both: guesses would be other
// words.
void check_same_vocabulary(const Tokenizer& model, const Tokenizer& draft, const std::string& draft_name);

}  // namespace llmq
