// Continues a prompt: one request alone on a serving engine, until an end token, a stop string, max_tokens or
// the end of the context.
//
// Neither the chunk in which the prompt is read nor a drafter changes a token, only memory and time.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/serving_engine.h"

namespace llmq {

struct GenerateOptions {
  std::int64_t max_tokens = 128;
  SamplingOptions sampling;
  std::vector<std::string> stop;  // ends before the first of these; not part of the text
  bool ignore_eos = false;
  std::shared_ptr<const Constraint> constraint;  // of what is written (grammar/constraint.h)
  std::int64_t min_tokens = 0;
  std::int64_t prefill_chunk = 512;
  Drafter* drafter = nullptr;
  std::int64_t num_draft_tokens = 0;  // of ServingOptions
};

struct Generated {
  std::vector<std::int32_t> tokens;  // the last may be the end token, which has no text
  std::string finish_reason;         // "stop" (end token, stop string or the caller) | "length"
  double ttft_seconds = 0;           // until the first token
  double tokens_per_second = 0;      // of the tokens after the first
  std::int64_t draft_rounds = 0, drafted = 0, accepted = 0;
};

// `on_token` sees every token as it comes; false ends the text after it ("stop"). Error(kUsage) for what
// cannot be run.
Generated generate_tokens(Engine& engine, std::span<const std::int32_t> prompt,
                          const GenerateOptions& options, const std::function<bool(std::int32_t)>& on_token);

struct GeneratedText {
  std::string text;
  std::int64_t prompt_tokens = 0;
  Generated generated;
};

// `on_text` sees whole characters as they become certain; their concatenation is `text`.
GeneratedText generate(Engine& engine, const Tokenizer& tokenizer, std::span<const std::int32_t> prompt,
                       const GenerateOptions& options, const std::function<void(std::string_view)>& on_text);

}  // namespace llmq
