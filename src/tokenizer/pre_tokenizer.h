// The pre_tokenizer of tokenizer.json: text -> words that are merged on their own.
//
// Known: ByteLevel, Split (a string or a regular expression, all five behaviours, inverted or not), Digits,
// Metaspace, Whitespace, WhitespaceSplit, CharDelimiterSplit, Sequence. Others are refused by name
// (kUnsupported). ByteLevel's change of alphabet is not carried out on the text: byte_level() tells the model
// to look words up byte by byte.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "tokenizer/known_patterns.h"

namespace llmq {

struct Words {
  std::string text;               // rewritten where a step adds or replaces characters
  std::vector<TextRange> ranges;  // in order; none empty
  bool starts_text = false;       // the first range begins where the whole input does
};

class PreTokenStep {
 public:
  virtual ~PreTokenStep() = default;
  virtual void apply(Words& words) const = 0;
};

class PreTokenizer {
 public:
  PreTokenizer() = default;  // leaves text whole
  static PreTokenizer parse(const Json& json, const std::string& file);
  bool byte_level() const { return byte_level_; }
  void split(Words& words) const {
    for (const auto& step : steps_) step->apply(words);
  }

 private:
  void add(const Json& json, const std::string& file);
  std::vector<std::shared_ptr<const PreTokenStep>> steps_;
  bool byte_level_ = false;
};

}  // namespace llmq
