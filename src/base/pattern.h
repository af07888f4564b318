// Names of modules and the patterns that choose them: "lm_head" (exact, or a whole trailing path part),
// "re:<RE2>".
//
// "re:" patterns match from the start of the name, as Python's re.match does and llm-compressor recipes
// expect. RE2 runs in linear time on any pattern and input. Source: compressed_tensors.utils.match.
#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace llmq {

class NamePattern {
 public:
  explicit NamePattern(std::string text);  // Error(kUsage) when the regular expression is not valid
  bool matches(std::string_view name) const;
  const std::string& text() const { return text_; }

 private:
  struct Compiled;
  std::string text_;
  std::shared_ptr<const Compiled> compiled_;  // null for a plain name
};

}  // namespace llmq
