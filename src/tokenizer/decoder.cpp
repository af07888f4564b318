// Each step maps the list of tokens; what is left is joined: with nothing between, or with spaces where there
// is no decoder at all.
#include "tokenizer/decoder.h"

#include "base/utf8.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/json_fields.h"
#include "tokenizer/text_replace.h"

namespace llmq {
namespace {

class ByteLevelDecoder final : public DecoderStep {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string joined;
    for (const std::string& token : tokens) joined += from_byte_alphabet(token).value_or(token);
    tokens.clear();
    tokens.push_back(std::move(joined));
  }
};

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// "<0xE2>" -> the byte E2
class ByteFallbackDecoder final : public DecoderStep {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      if (token.size() != 6 || token.compare(0, 3, "<0x") != 0 || token[5] != '>') continue;
      const int high = hex_digit(token[3]), low = hex_digit(token[4]);
      if (high >= 0 && low >= 0) token.assign(1, static_cast<char>(high * 16 + low));
    }
  }
};

class ReplaceDecoder final : public DecoderStep {
 public:
  ReplaceDecoder(std::string needle, std::string content)
      : needle_(std::move(needle)), content_(std::move(content)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) token = replace_all(token, needle_, content_);
  }

 private:
  std::string needle_, content_;
};

class StripDecoder final : public DecoderStep {
 public:
  StripDecoder(std::string content, std::int64_t start, std::int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      std::size_t begin = 0, end = token.size();
      const std::size_t bytes = content_.size();
      for (std::int64_t i = 0; i < start_ && token.compare(begin, bytes, content_) == 0; ++i) begin += bytes;
      for (std::int64_t i = 0;
           i < stop_ && end >= begin + bytes && token.compare(end - bytes, bytes, content_) == 0; ++i)
        end -= bytes;
      token = token.substr(begin, end - begin);
    }
  }

 private:
  std::string content_;
  std::int64_t start_, stop_;
};

class FuseDecoder final : public DecoderStep {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string joined;
    for (const std::string& token : tokens) joined += token;
    tokens.clear();
    tokens.push_back(std::move(joined));
  }
};

// The replacement character becomes a space; in the first token, which the prefix was put before, nothing.
class MetaspaceDecoder final : public DecoderStep {
 public:
  MetaspaceDecoder(std::string replacement, bool prepended)
      : replacement_(std::move(replacement)), prepended_(prepended) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = replace_all(tokens[i], replacement_, i == 0 && prepended_ ? "" : " ");
  }

 private:
  std::string replacement_;
  bool prepended_;
};

std::string one_character(const Json& json, std::string_view key, const std::string& file) {
  const std::string& text = json.at(key).as_string();
  if (text.empty() || read_utf8(text, 0).bytes != text.size())
    fail(ErrorKind::kBadInput,
         {"'" + std::string(key) + "' is one character, found '" + text + "'", file, "decoder", {}});
  return text;
}

}  // namespace

void Decoder::add(const Json& json, const std::string& file) {
  const std::string& type = json.at("type").as_string();
  if (type == "Sequence") {
    for (const Json& step : json.at("decoders").items()) add(step, file);
  } else if (type == "ByteLevel") {
    steps_.push_back(std::make_shared<ByteLevelDecoder>());
  } else if (type == "ByteFallback") {
    steps_.push_back(std::make_shared<ByteFallbackDecoder>());
  } else if (type == "Replace") {
    const JsonPattern pattern = pattern_of(json, file);
    if (pattern.is_regex) refuse_component("decoder", "Replace by regular expression", file);
    steps_.push_back(std::make_shared<ReplaceDecoder>(pattern.text, json.at("content").as_string()));
  } else if (type == "Strip") {
    steps_.push_back(std::make_shared<StripDecoder>(
        one_character(json, "content", file), json.at("start").as_integer(), json.at("stop").as_integer()));
  } else if (type == "Fuse") {
    steps_.push_back(std::make_shared<FuseDecoder>());
  } else if (type == "Metaspace") {
    const Json* scheme = json.find("prepend_scheme");
    const bool never =
        is_set(scheme) ? scheme->as_string() == "never" : !flag_of(json, "add_prefix_space", true);
    steps_.push_back(std::make_shared<MetaspaceDecoder>(one_character(json, "replacement", file), !never));
  } else {
    refuse_component("decoder", type, file);
  }
}

Decoder Decoder::parse(const Json& json, const std::string& file) {
  Decoder made;
  if (!json.is_null()) made.add(json, file);
  return made;
}

std::string Decoder::decode(std::vector<std::string> tokens) const {
  for (const auto& step : steps_) step->apply(tokens);
  std::string out;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (steps_.empty() && i > 0) out += ' ';
    out += tokens[i];
  }
  return out;
}

}  // namespace llmq
