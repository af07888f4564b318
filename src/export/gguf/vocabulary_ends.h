// What a tokenizer puts round a text, as far as a GGUF can say it.
#pragma once
#include <optional>

#include "export/gguf/tokenizer_files.h"

namespace llmq {

// What the post-processor puts round a text, as far as SpecialVocab reads it; nothing where it says nothing.
struct VocabularyEnds {
  std::optional<bool> bos, eos, sep;
};

VocabularyEnds read_ends(const TokenizerFiles& files);

}  // namespace llmq
