#include "serve/served_model.h"

#include <algorithm>
#include <span>
#include <string_view>

namespace llmq {

std::size_t most_prompt_bytes(const ServedModel& model) {
  constexpr std::size_t kAlways = 64u << 10;
  std::size_t longest = 1;
  for (std::int32_t id = 0; id < model.tokenizer.vocabulary_size(); ++id)
    longest = std::max(longest, 1 + model.tokenizer.decode(std::span(&id, 1)).size());  // 1: a blank that starts a text is dropped
  return std::max(kAlways, longest * static_cast<std::size_t>(model.max_model_len));
}

std::string token_bytes(const Tokenizer& tokenizer, std::int32_t id) {
  static constexpr std::string_view kBefore = "a";
  std::vector<std::int32_t> ids = tokenizer.encode(kBefore, false);
  const std::string before = tokenizer.decode(ids);
  ids.push_back(id);
  const std::string both = tokenizer.decode(ids);
  return both.starts_with(before) ? both.substr(before.size()) : both;
}

}  // namespace llmq
