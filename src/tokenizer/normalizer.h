// The normalizer of tokenizer.json: text -> text, before anything is split.
//
// Known: Prepend, Replace (a string or a regular expression), NFC, NFD, NFKC, NFKD, Strip, ByteLevel,
// Sequence. Others are refused by name.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"

namespace llmq {

class NormalizerStep {
 public:
  virtual ~NormalizerStep() = default;
  virtual void apply(std::string& text) const = 0;
};

class Normalizer {
 public:
  Normalizer() = default;  // leaves text as it is
  static Normalizer parse(const Json& json, const std::string& file);
  bool empty() const { return steps_.empty(); }
  void apply(std::string& text) const {
    for (const auto& step : steps_) step->apply(text);
  }

 private:
  void add(const Json& json, const std::string& file);
  std::vector<std::shared_ptr<const NormalizerStep>> steps_;
};

enum class NormalForm { kC, kD, kKC, kKD };

// Unicode normalization; code points that Hugging Face's older tables do not know stay as they are. O(n log
// n) at worst, on runs of marks.
std::string unicode_normalize(std::string_view text, NormalForm form);

}  // namespace llmq
