// What a token adds to a text that goes before it: some tokenizers drop the blank of a text's first token.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace llmq {

class TokenBytes {
 public:
  explicit TokenBytes(const Tokenizer& tokenizer);  // which lives longer
  std::string operator()(std::int32_t id) const;

 private:
  const Tokenizer& tokenizer_;
  std::vector<std::int32_t> before_;
  std::string text_before_;
};

}  // namespace llmq
