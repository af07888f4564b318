// The tokenizer inside a GGUF file, as the JSON files that a Hugging Face directory would hold.
//
// tokenizer.ggml.model "gpt2" is byte-level BPE whose pre-tokenizer .pre names (smollm, llama-bpe, qwen2,
// gpt-2, glm4, deepseek-v3, default and their synonyms); "llama" is SentencePiece-style BPE with byte
// fallback, its merges rebuilt from the scores as Transformers' converter does. Any other model or
// pre-tokenizer is refused by name (kUnsupported).
#pragma once
#include "base/json.h"
#include "io/gguf.h"

namespace llmq {

struct GgufTokenizer {
  Json tokenizer;       // tokenizer.json
  Json config;          // tokenizer_config.json
  Json special_tokens;  // special_tokens_map.json
};

GgufTokenizer gguf_tokenizer(const GgufHeader& header);

}  // namespace llmq
