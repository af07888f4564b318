// The text of an answer, token by token: its own bytes behind the prompt, up to a stop string, in whole
// characters.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "runtime/stop_strings.h"
#include "tokenizer/tokenizer.h"

namespace llmq {

class AnswerText {
 public:
  AnswerText(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt,
             std::vector<std::string> stops);
  // What has become certain. No stop string ends in a token that may not stop.
  std::string push(std::int32_t token, bool may_stop = true);
  std::string finish();  // the rest; nothing follows
  bool stopped() const { return stops_.stopped(); }
  bool empty() const { return previous_ < 0; }  // nothing that is shown was there so far, the prompt included

 private:
  bool is_special(std::int32_t token) const;
  std::string bytes_of(std::int32_t token);

  const Tokenizer* tokenizer_;
  StopStrings stops_;
  Utf8Stream characters_;
  std::int32_t previous_ = -1;  // the last token that is shown
};

}  // namespace llmq
