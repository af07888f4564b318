// What is asked of a serving engine, and what it tells: values only.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/logprobs.h"
#include "runtime/sampler.h"

namespace llmq {

struct Constraint;

struct GenerationRequest {
  std::uint64_t id = 0;              // the caller's, of no other request that lives
  std::vector<std::int32_t> prompt;  // at least one token
  std::int64_t max_tokens = 16;      // at least one; the end of the context ends an answer too
  std::int64_t min_tokens = 0;       // among these, no end token is chosen and no stop string ends
  SamplingOptions sampling;
  std::vector<std::string> stop;          // the text ends before the first of these
  std::vector<std::int32_t> stop_tokens;  // end tokens beside the model's own
  bool ignore_eos = false;                // the model's own end tokens are tokens like others
  // what the answer may be (grammar/constraint.h); it ends where nothing can follow
  std::shared_ptr<const Constraint> constraint;
  int n = 1;  // answers; answer i > 0 draws with a seed made of the seed and i
  // of each token, and of so many of the likeliest (0: of the token alone)
  std::optional<std::int64_t> logprobs;
  // Of each token of the prompt but the first, and of so many of the likeliest in its place. The whole prompt
  // is computed: nothing of it is taken from the prefix cache, or given to it.
  std::optional<std::int64_t> prompt_logprobs;
  int priority = 0;  // lower is sooner, -100 ... 100
  // the server's own: a few rows of each step, and not in the statistics of answers
  bool background = false;
  std::string tenant;   // prefixes are shared among requests of the same one only
  std::string adapter;  // one that is loaded; empty: the model alone
};

// kFailed: the constraint cost more than its budgets allow.
enum class FinishReason : std::uint8_t { kStop, kLength, kCancelled, kFailed };

// What one answer of a request got in one step, or at its end.
struct GenerationEvent {
  std::uint64_t id = 0;
  int index = 0;                               // which of the n answers
  std::int64_t cached_tokens = 0;              // of the prompt, taken from the prefix cache when it started
  std::vector<std::int32_t> tokens;            // the last may be an end token, which has no text
  std::string text;                            // what has become certain; may lag behind the tokens
  std::vector<TokenLogprobs> logprobs;         // one for each of `tokens`, where asked for
  std::vector<TokenLogprobs> prompt_logprobs;  // with the answer's first token, where asked for
  std::optional<FinishReason> finish;          // this answer's last event
  std::string failure;                         // a sentence, where it failed
};

// Why a request is not taken. kBusy passes: ask again later.
struct GenerationRefusal {
  enum class Kind : std::uint8_t { kInvalid, kTooLong, kBusy, kUnknownModel };
  Kind kind = Kind::kInvalid;
  std::string field;    // of the request: "top_p", "prompt"; may be empty
  std::string message;  // one sentence
};

// What can be said of a request without knowing what else runs. `most_answers`: of n. Without `text` stop
// strings are refused.
std::optional<GenerationRefusal> check_request(const GenerationRequest& request, std::int64_t vocabulary,
                                               std::int64_t most_answers, bool text);

}  // namespace llmq
