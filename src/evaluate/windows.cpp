// Cutting a text's ids into windows, as the two protocols do.
//
// hf:        windows [i*stride, i*stride + context) that fit whole; every position is scored once, in the
//            first window that holds it with the most context: all but position 0 of the first, the last
//            `stride` of the others. Stride = context: all but the first of each.
// llama.cpp: windows without overlap, BOS written over the first id where the tokenizer adds one; targets
// context/2 + 1 .. context - 1.
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
  if (name != "hf" && name != "llama.cpp")
    fail(ErrorKind::kUsage,
         {"protocol '" + name + "' is not known", {}, "--protocol", "use hf or llama.cpp"});
  PerplexityProtocol protocol;
  protocol.name = name;
  const std::int64_t longest = spec.max_position > 0 ? spec.max_position : 2048;
  protocol.context = context.value_or(std::min<std::int64_t>(name == "hf" ? 2048 : 512, longest));
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
  if (name == "llama.cpp" && protocol.stride != protocol.context)
    fail(ErrorKind::kUsage,
         {"the llama.cpp protocol has no stride", {}, "--stride", "leave it out, or use --protocol hf"});
  if (max_windows < 0)
    fail(ErrorKind::kUsage, {fmt::format("{} windows", max_windows),
                             {},
                             "--max-windows",
                             "give a positive number, or 0 for all"});
  protocol.max_windows = max_windows;
  return protocol;
}

std::vector<Window> cut_windows(std::span<const std::int32_t> ids, const PerplexityProtocol& protocol,
                                std::optional<std::int32_t> bos) {
  const auto length = static_cast<std::int64_t>(ids.size());
  std::vector<Window> windows;
  for (std::int64_t begin = 0; begin + protocol.context <= length; begin += protocol.stride) {
    if (protocol.max_windows > 0 && static_cast<std::int64_t>(windows.size()) == protocol.max_windows) break;
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
  if (windows.empty())
    fail(ErrorKind::kBadInput,
         {fmt::format("the text has {} tokens, fewer than one window of {}", length, protocol.context),
          {},
          {},
          "give a longer text or a smaller --context"});
  return windows;
}

}  // namespace llmq
