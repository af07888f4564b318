// The first byte chooses: an even one, and the rest is a tokenizer.json, which then encodes a fixed text; an
// odd one, and the rest is text for two fixed tokenizers (byte-level with normalization,
// SentencePiece-style), whose ids must decode without fault.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "tokenizer/tokenizer.h"

namespace {

using namespace llmq;

constexpr std::string_view kText =
    "Hello  world's 1234 \n\t caf\xc3\xa9 e\xcc\x81 \xe4\xbd\xa0 <s>x</s> \xf0\x9f\xa6\x99 "
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

Tokenizer byte_level() {
  return Tokenizer::parse(
      Json::parse(
          R"({"normalizer": {"type": "NFC"}, "added_tokens": [{"id": 6, "content": "<s>", "special": true, "lstrip": true, "rstrip": true},
      {"id": 7, "content": "ab", "single_word": true, "normalized": true}],
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true, "use_regex": true}, "decoder": {"type": "ByteLevel"},
      "model": {"type": "BPE", "unk_token": "u", "vocab": {"u": 0, "a": 1, "b": 2, "aa": 3, "Ġ": 4, "Ġa": 5}, "merges": ["a a", "Ġ a"]}})",
          "fixed"),
      "fixed");
}

Tokenizer sentencepiece() {
  return Tokenizer::parse(
      Json::parse(R"({"normalizer": {"type": "NFKC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}, {"type": "Split", "pattern": {"Regex": "\\w+|[^\\w\\s]+"}, "behavior": "MergedWithNext", "invert": false},
      {"type": "Digits", "individual_digits": true}]},
      "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 1}]},
      "model": {"type": "BPE", "unk_token": "u", "fuse_unk": true, "byte_fallback": true, "vocab": {"u": 0, "a": 1, "▁": 2, "aa": 3, "▁a": 4, "<0xCC>": 5, "<0x81>": 6},
      "merges": [["a", "a"], ["▁", "a"]]}})",
                  "fixed"),
      "fixed");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  static const Tokenizer fixed[] = {byte_level(), sentencepiece()};
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  try {
    if (bytes[0] % 2 == 0) {
      const Tokenizer tokenizer = Tokenizer::parse(Json::parse(rest, "fuzz"), "fuzz");
      tokenizer.decode(tokenizer.encode(kText));
      tokenizer.vocabulary_size();
    } else {
      for (const Tokenizer& tokenizer : fixed) tokenizer.decode(tokenizer.encode(rest), true);
    }
  } catch (const Error&) {
  }
  return 0;
}
