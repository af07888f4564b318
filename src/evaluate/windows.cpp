// Cutting a text's ids into windows, as the protocols do.
//
// hf:        windows [i*stride, i*stride + context) that fit whole; every position is scored once, in the
//            first window that holds it with the most context: all but position 0 of the first, the last
//            `stride` of the others. Stride = context: all but the first of each.
// llama.cpp: windows without overlap, BOS written over the first id where the tokenizer adds one; targets
// context/2 + 1 .. context - 1.
// lm-eval:   every id is scored once. The prefix token stands before the first; windows are context - 1 long
// and overlap in one id, and the last one begins so early that it is as long as the others.
//            That is get_rolling_token_windows(max_seq_len = context - 2, context_len = 1) of
//            lm-evaluation-harness 0.4.13, whose local-completions keeps one place for the token that is
//            generated and one for the context of a window.
#include "base/error.h"
#include "evaluate/perplexity.h"

namespace llmq {

std::string PerplexityProtocol::id() const {
  std::string text = name + "-" + std::to_string(context);
  if (stride != context) text += "-stride-" + std::to_string(stride);
  return text;
}

PerplexityProtocol resolve_protocol(const std::string& name, std::optional<std::int64_t> context,
                                    std::optional<std::int64_t> stride, std::int64_t max_windows,
                                    const ModelSpec& spec) {
  if (name != "hf" && name != "llama.cpp" && name != "lm-eval")
    fail(ErrorKind::kUsage,
         {"protocol '" + name + "' is not known", {}, "--protocol", "use hf, llama.cpp or lm-eval"});
  PerplexityProtocol protocol;
  protocol.name = name;
  const std::int64_t longest = spec.max_position > 0 ? spec.max_position : 2048;
  protocol.context = context.value_or(std::min<std::int64_t>(name == "llama.cpp" ? 512 : 2048, longest));
  if (protocol.context < 4 || protocol.context > longest)
    fail(ErrorKind::kUsage, {fmt::format("context {} is outside 4 .. {}, the positions this model has",
                                         protocol.context, longest),
                             {},
                             "--context",
                             "choose a context in that range"});
  protocol.stride = stride.value_or(protocol.context);
  if (protocol.stride < 1 || protocol.stride > protocol.context)
    fail(ErrorKind::kUsage, {fmt::format("stride {} is outside 1 .. {}", protocol.stride, protocol.context),
                             {},
                             "--stride",
                             "choose a stride in that range"});
  if (name != "hf" && protocol.stride != protocol.context)
    fail(ErrorKind::kUsage,
         {"the " + name + " protocol has no stride", {}, "--stride", "leave it out, or use --protocol hf"});
  if (max_windows < 0)
    fail(ErrorKind::kUsage, {fmt::format("{} windows", max_windows),
                             {},
                             "--max-windows",
                             "give a positive number, or 0 for all"});
  protocol.max_windows = max_windows;
  return protocol;
}

namespace {

bool enough_windows(const std::vector<Window>& windows, const PerplexityProtocol& protocol) {
  return protocol.max_windows > 0 && static_cast<std::int64_t>(windows.size()) == protocol.max_windows;
}

std::vector<Window> rolling_windows(std::span<const std::int32_t> ids, const PerplexityProtocol& protocol,
                                    std::int32_t prefix) {
  std::vector<std::int32_t> text = {prefix};
  text.insert(text.end(), ids.begin(), ids.end());
  const auto end = static_cast<std::int64_t>(text.size());
  std::vector<Window> windows;
  for (std::int64_t scored = 1; scored < end && !enough_windows(windows, protocol);) {
    const std::int64_t stop = std::min(end, scored + protocol.context - 2);
    const std::int64_t begin = std::max<std::int64_t>(0, stop - protocol.context + 1);
    windows.push_back({{text.begin() + begin, text.begin() + stop}, scored - begin});
    scored = stop;
  }
  return windows;
}

std::vector<Window> whole_windows(std::span<const std::int32_t> ids, const PerplexityProtocol& protocol,
                                  std::optional<std::int32_t> bos) {
  const auto length = static_cast<std::int64_t>(ids.size());
  std::vector<Window> windows;
  for (std::int64_t begin = 0; begin + protocol.context <= length && !enough_windows(windows, protocol);
       begin += protocol.stride) {
    Window window;
    const auto first = ids.begin() + begin;
    window.tokens.assign(first, first + protocol.context);
    if (protocol.name == "llama.cpp") {
      if (bos) window.tokens[0] = *bos;
      window.first_scored = protocol.context / 2 + 1;
    } else if (begin > 0) {
      window.first_scored = std::max<std::int64_t>(1, protocol.context - protocol.stride);
    }
    windows.push_back(std::move(window));
  }
  return windows;
}

}  // namespace

std::vector<Window> cut_windows(std::span<const std::int32_t> ids, const PerplexityProtocol& protocol,
                                std::optional<std::int32_t> first) {
  const bool rolling = protocol.name == "lm-eval";
  if (rolling && !first)
    fail(ErrorKind::kBadInput, {"the tokenizer names neither a bos_token nor an eos_token, one of which the "
                                "lm-eval protocol puts before the text",
                                {},
                                "--protocol",
                                "use --protocol hf"});
  std::vector<Window> windows =
      rolling ? rolling_windows(ids, protocol, *first) : whole_windows(ids, protocol, first);
  if (windows.empty())
    fail(ErrorKind::kBadInput, {rolling ? "the text has no token to score"
                                        : fmt::format("the text has {} tokens, fewer than one window of {}",
                                                      ids.size(), protocol.context),
                                {},
                                {},
                                rolling ? "give a text" : "give a longer text or a smaller --context"});
  return windows;
}

}  // namespace llmq
