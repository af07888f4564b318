// Text around the loop of generate_tokens.cpp: bytes of tokens, stop strings, whole characters.
#include "runtime/generate.h"

#include <algorithm>

#include "runtime/stop_strings.h"

namespace llmq {

GeneratedText generate(Engine& engine, const Tokenizer& tokenizer, std::span<const std::int32_t> prompt,
                       const GenerateOptions& options, const std::function<void(std::string_view)>& on_text) {
  GeneratedText result;
  result.prompt_tokens = static_cast<std::int64_t>(prompt.size());
  StopStrings stops(options.stop);
  Utf8Stream characters;
  const auto emit = [&](const std::string& text) {
    if (text.empty()) return;
    result.text += text;
    on_text(text);
  };
  // A token's own bytes: what it adds behind the last one that is shown (SentencePiece drops a leading space at
  // the start of a text only, and special tokens are no text).
  const auto is_special = [&](std::int32_t token) {
    const std::span<const std::int32_t> one(&token, 1);
    return tokenizer.decode(one, true).empty() && !tokenizer.decode(one, false).empty();
  };
  const auto last_shown = std::find_if_not(prompt.rbegin(), prompt.rend(), is_special);
  std::int32_t previous = last_shown == prompt.rend() ? -1 : *last_shown;
  const auto bytes_of = [&](std::int32_t token) -> std::string {
    if (is_special(token)) return {};
    const std::int32_t pair[] = {previous, token};
    const std::string before = tokenizer.decode(std::span(pair).first(1), true);
    const std::string both = tokenizer.decode(pair, true);
    previous = token;
    return both.starts_with(before) ? both.substr(before.size())
                                    : tokenizer.decode(std::span(pair).last(1), true);
  };
  result.generated = generate_tokens(engine, prompt, options, [&](std::int32_t token) {
    emit(characters.push(stops.push(bytes_of(token))));
    return !stops.stopped();
  });
  if (!stops.stopped()) emit(characters.push(stops.finish()));
  emit(characters.finish());
  return result;
}

}  // namespace llmq
