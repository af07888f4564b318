#include "serve/served_model.h"

#include <algorithm>
#include <span>

namespace llmq {

bool ServedModel::answers_to(const std::string& asked) const {
  return asked == name || std::find(aliases.begin(), aliases.end(), asked) != aliases.end();
}

std::size_t most_prompt_bytes(const ServedModel& model) {
  constexpr std::size_t kAlways = 64u << 10;
  std::size_t longest = 1;
  // 1: a blank that starts a text is dropped
  for (std::int32_t id = 0; id < model.tokenizer.vocabulary_size(); ++id)
    longest = std::max(longest, 1 + model.tokenizer.decode(std::span(&id, 1)).size());
  return std::max(kAlways, longest * static_cast<std::size_t>(model.max_model_len));
}

}  // namespace llmq
