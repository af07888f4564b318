// The tokens of a GGUF's vocabulary: a text, a type and perhaps a score for each row of the embedding, and
// the merges.
//
// Rows that the tokenizer does not use are "[PADn]".
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/io.h"
#include "export/gguf/tokenizer_files.h"
#include "tokenizer/token_type.h"

namespace llmq {

struct VocabularyTokens {
  std::vector<std::string> texts;
  std::vector<TokenType> types;
  std::vector<float> scores;  // of a "llama" vocabulary

  std::vector<std::int32_t> type_numbers() const {
    std::vector<std::int32_t> numbers;
    for (const TokenType type : types) numbers.push_back(static_cast<std::int32_t>(type));
    return numbers;
  }
};

// Those of tokenizer.json, without scores. Error(kBadInput) for an id beyond the rows.
VocabularyTokens read_tokens(const TokenizerFiles& files, std::int64_t rows, bool byte_level);

// "left right" for each merge; a space inside a part is written as GPT-2's letter for it.
std::vector<std::string> read_merges(const TokenizerFiles& files);

// Minus the rank of the first merge that makes the token, by which llama.cpp then merges in the same order.
std::vector<float> scores_of(const VocabularyTokens& tokens, const std::vector<std::string>& merges);

// Types and scores of tokens that llama.cpp merges by their merges: of the vocabulary those that
// tokenizer_config.json names are controls, whatever tokenizer.json adds; of what comes behind it the others
// are a user's, and so are all `visible` ones.
void set_plain_types(const TokenizerFiles& files, std::span<const char* const> visible,
                     VocabularyTokens& tokens);

// The pieces of tokenizer.model in `directory`, whose scores are those that SentencePiece merges by; then
// what was added to them: as it is, or (`as_told` false) controls by their looks and spaces as such.
VocabularyTokens tokens_of_pieces(Io& io, const TokenizerFiles& files, const Path& directory,
                                  std::int64_t rows, bool as_told);

}  // namespace llmq
