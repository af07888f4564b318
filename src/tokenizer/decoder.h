// The decoder of tokenizer.json: token strings -> the bytes of the text.
//
// Known: ByteLevel, ByteFallback, Replace (of a string), Strip, Fuse, Metaspace, Sequence. Others are refused
// by name (kUnsupported). Unlike Hugging Face's, bytes that are no UTF-8 come out as they are: whoever prints
// them decides (Utf8Stream makes U+FFFD of them).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/utf8.h"

namespace llmq {

class DecoderStep {
 public:
  virtual ~DecoderStep() = default;
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};

class Decoder {
 public:
  static Decoder parse(const Json& json, const std::string& file);
  std::string decode(std::vector<std::string> tokens) const;

 private:
  void add(const Json& json, const std::string& file);
  std::vector<std::shared_ptr<const DecoderStep>> steps_;
};

}  // namespace llmq
