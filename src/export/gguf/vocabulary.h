// A Hugging Face tokenizer as tokenizer.ggml.*: byte-level BPE as model "gpt2", BPE with byte fallback as
// "llama".
//
// Ids of the embedding that the tokenizer does not use become "[PADn]". What llama.cpp's converter leaves to
// a default that would give other ids than the tokenizer does is said: add_bos_token, add_space_prefix, and
// the scores of a "llama" vocabulary, by which llama.cpp merges (the converter writes -1000 for all): minus
// the rank of the first merge that makes the token, so that both merge in the same order. Where
// tokenizer.model lies beside it, scores are its own, and merges follow from them. Source: llama.cpp's
// conversion/base.py (get_vocab_base, _set_vocab_llama_hf), gguf-py/gguf/vocab.py (SpecialVocab,
// LlamaHfVocab).
#pragma once
#include <cstdint>

#include "base/io.h"
#include "io/checkpoint.h"
#include "io/gguf_writer.h"
#include "model/gguf/gguf_family.h"

namespace llmq {

// `rows` of the embedding; `rules` of the model's family. Error(kBadInput) without a tokenizer.json.
void add_gguf_vocabulary(Io& io, const Checkpoint& checkpoint, std::int64_t rows, const GgufVocabulary& rules,
                         GgufMetadata& metadata);

}  // namespace llmq
