// The loop over tokens; it knows no text.
#include "runtime/generate.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace llmq {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A sequence of the cache for as long as this lives.
class OpenSequence {
 public:
  explicit OpenSequence(KvCache& cache) : cache_(cache), id_(cache.open_sequence()) {}
  ~OpenSequence() { cache_.close_sequence(id_); }
  OpenSequence(const OpenSequence&) = delete;
  OpenSequence& operator=(const OpenSequence&) = delete;
  std::uint64_t id() const { return id_; }
  std::int64_t length() const { return cache_.length(id_); }

 private:
  KvCache& cache_;
  std::uint64_t id_;
};

// Runs `tokens` in chunks; the logits after the last of them into `values`.
void last_logits(Engine& engine, std::uint64_t sequence, std::span<const std::int32_t> tokens,
                 std::int64_t chunk, std::vector<float>& values) {
  const DType dtype = activation_dtype(engine.options().compute);
  const std::int64_t width = engine.spec().hidden_size;
  const auto step = static_cast<std::size_t>(chunk);
  for (std::size_t first = 0;; first += step) {
    const std::span<const std::int32_t> part = tokens.subspan(first, std::min(step, tokens.size() - first));
    const Engine::Step steps[] = {{sequence, part}};
    const Buffer normed = engine.forward(steps);
    if (first + part.size() < tokens.size()) continue;
    const auto rows = static_cast<std::int64_t>(part.size());
    const TensorView logits = engine.logits(normed.view(dtype, {rows, width}).row_slice(rows - 1, 1));
    values.resize(static_cast<std::size_t>(engine.spec().vocab_size));
    engine.backend().download(values.data(), logits);
    return;
  }
}

void check(const Engine& engine, std::span<const std::int32_t> prompt, const GenerateOptions& options) {
  check_sampling(options.sampling);
  if (prompt.empty())
    fail(ErrorKind::kUsage,
         ErrorDetail{"the prompt has no tokens", {}, "--prompt", "give at least one character"});
  if (options.max_tokens < 0 || options.prefill_chunk < 1)
    fail(ErrorKind::kUsage, "{} tokens in chunks of {} cannot be generated", options.max_tokens,
         options.prefill_chunk);
  if (static_cast<std::int64_t>(prompt.size()) > engine.options().max_context)
    fail(ErrorKind::kUsage, ErrorDetail{fmt::format("the prompt has {} tokens and the context holds {}",
                                                    prompt.size(), engine.options().max_context),
                                        {},
                                        {},
                                        "shorten the prompt"});
}

}  // namespace

Generated generate_tokens(Engine& engine, std::span<const std::int32_t> prompt,
                          const GenerateOptions& options, const std::function<bool(std::int32_t)>& on_token) {
  check(engine, prompt, options);
  const std::vector<std::int32_t>& ends = engine.spec().eos_ids;
  const OpenSequence sequence(engine.cache());
  const Clock::time_point start = Clock::now();
  Clock::time_point first_token = start;

  Generated result;
  result.finish_reason = "length";
  std::vector<std::int32_t> next(prompt.begin(), prompt.end());
  std::vector<float> logits;
  while (static_cast<std::int64_t>(result.tokens.size()) < options.max_tokens &&
         sequence.length() + static_cast<std::int64_t>(next.size()) <= engine.options().max_context) {
    last_logits(engine, sequence.id(), next, options.prefill_chunk, logits);
    const std::int32_t token = sample_token(logits, options.sampling, result.tokens.size());
    if (result.tokens.empty()) {
      result.ttft_seconds = seconds_since(start);
      first_token = Clock::now();
    }
    if (!options.ignore_eos && std::find(ends.begin(), ends.end(), token) != ends.end()) {
      result.finish_reason = "stop";
      break;
    }
    result.tokens.push_back(token);
    if (!on_token(token)) {
      result.finish_reason = "stop";
      break;
    }
    next.assign(1, token);
  }
  const double decoding = seconds_since(first_token);
  if (result.tokens.size() > 1 && decoding > 0)
    result.tokens_per_second = static_cast<double>(result.tokens.size() - 1) / decoding;
  return result;
}

}  // namespace llmq
