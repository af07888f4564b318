// Regular expressions of tokenizer.json: Oniguruma with its own syntax, as Hugging Face tokenizers uses it.
//
// Time is bounded: a search that backtracks more than a fixed number of times per byte is refused
// (kUnsupported), never waited for.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace llmq {

class Regex {
 public:
  Regex(std::string pattern, const std::string& file);  // Error(kBadInput) when it is not valid
  const std::string& pattern() const { return pattern_; }
  // Calls found(begin, end) for every match, left to right, none overlapping. `text` is valid UTF-8.
  void find_all(std::string_view text, const std::function<void(std::size_t, std::size_t)>& found) const;

 private:
  struct Compiled;
  std::string pattern_, file_;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace llmq
