#include "tokenizer/token_bytes.h"

namespace llmq {

TokenBytes::TokenBytes(const Tokenizer& tokenizer)
    : tokenizer_(tokenizer), before_(tokenizer.encode("a", false)), text_before_(tokenizer.decode(before_)) {}

std::string TokenBytes::operator()(std::int32_t id) const {
  std::vector<std::int32_t> ids = before_;
  ids.push_back(id);
  const std::string both = tokenizer_.decode(ids);
  return both.starts_with(text_before_) ? both.substr(text_before_.size()) : both;
}

}  // namespace llmq
