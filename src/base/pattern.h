// Names of modules and the patterns that choose them: "lm_head" (exact, or a whole trailing path part),
// "re:<RE2>".
//
// "re:" patterns match from the start of the name, as Python's re.match does and llm-compressor recipes
// expect. RE2 runs in linear time on any pattern and input. Source: compressed_tensors.utils.match.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace llmq {

class NamePattern {
 public:
  explicit NamePattern(std::string text);  // Error(kUsage) when the regular expression is not valid
  bool matches(std::string_view name) const;
  const std::string& text() const { return text_; }
  int instructions() const;  // of RE2's program; 0 of a plain name

 private:
  struct Compiled;
  std::string text_;
  std::shared_ptr<const Compiled> compiled_;  // null for a plain name
};

// What the patterns of one file may be together: RE2 bounds each, and a file may hold any number of them.
class PatternBudget {
 public:
  // Error(kUsage) as NamePattern's, and where there are more by now than models have linears, or where their
  // programs take more than 128 MiB.
  NamePattern make(std::string text);

 private:
  static constexpr std::int64_t kMostPatterns = 1 << 17, kMostInstructions = 1 << 23;
  std::int64_t patterns_ = 0, instructions_ = 0;
};

}  // namespace llmq
