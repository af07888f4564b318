// Continues a prompt: prefill in chunks, then one token at a time, until an end token, a stop string,
// max_tokens or the end of the context.
//
// The chunk size changes no token (row invariance), only memory. A sequence of its own is opened in the
// engine's cache and closed again.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/engine.h"
#include "runtime/sampler.h"
#include "tokenizer/tokenizer.h"

namespace llmq {

struct GenerateOptions {
  std::int64_t max_tokens = 128;
  SamplingOptions sampling;
  std::vector<std::string> stop;  // ends before the first of these; not part of the text
  bool ignore_eos = false;
  std::int64_t prefill_chunk = 512;
};

struct Generated {
  std::vector<std::int32_t> tokens;  // without the end token
  std::string finish_reason;         // "stop" (end token, stop string or the caller) | "length"
  double ttft_seconds = 0;           // until the first token
  double tokens_per_second = 0;      // of the tokens after the first
};

// `on_token` sees every token as it comes; false ends the text after it ("stop").
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
