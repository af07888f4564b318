// tokenizer.json -> ids and back: byte-level BPE (GPT-2, Llama-3, Qwen2/3, SmolLM2) and SentencePiece-style
// BPE with byte fallback (Llama-2, Mistral).
//
// encode(text) equals Hugging Face `tokenizers` on the same file, id for id, for any valid UTF-8; invalid
// UTF-8 is Error(kBadInput) with the byte offset. Linear time in the text (a merge heap per pre-token; no
// regular expression that can blow up).
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/io.h"
#include "base/json.h"

namespace llmq {

class Tokenizer {
 public:
  // `json` is the parsed tokenizer.json, `file` its name in errors. A component llmq does not know is refused
  // by name (kUnsupported).
  static Tokenizer parse(const Json& json, const std::string& file);
  // tokenizer.json (and tokenizer_config.json where it changes ids) of a model directory, or its
  // tiktoken.model (tokenizer/tiktoken_file.h); or the one built from a .gguf's metadata.
  static Tokenizer open(Io& io, const Path& model);

  // `special`: with the post-processor's special tokens (BOS ...), as `tokenizer(text)` of Transformers does.
  std::vector<std::int32_t> encode(std::string_view text, bool special = true) const;
  // Bytes of the ids; `skip_special` leaves special tokens out. May be cut inside a character: callers that
  // stream use Utf8Stream.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;
  bool is_special(std::int32_t id) const;  // one of those that decode() leaves out
  std::int32_t vocabulary_size() const;    // highest id + 1
  std::optional<std::int32_t> id_of(std::string_view token) const;
  std::string token(std::int32_t id) const;  // as written in the file, e.g. "Ġthe"
  std::optional<std::int32_t> bos() const;   // from tokenizer_config.json / special tokens, when known
  std::optional<std::int32_t> eos() const;   // from tokenizer_config.json, when known

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace llmq
