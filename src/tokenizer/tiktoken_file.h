// tiktoken.model, as Kimi-K2 publishes its vocabulary, as the tokenizer.json that it stands for.
//
// A line is a token's bytes in base64 and its rank. A token of several bytes is merged from each two tokens
// that it is made of, those of a lower rank first (Transformers' TikTokenConverter, and tiktoken's own rule);
// a word that is a token is not taken apart. How text is split into words stands in Python beside the file:
// llmq knows Kimi's expression, and a vocabulary of another class is refused by name.
//
// Tokens from the last rank on are those of added_tokens_decoder, up to kReservedTokens, and
// <|reserved_token_N|> where that names none. Source: tokenization_kimi.py of Kimi-K2.
#pragma once
#include "base/io.h"
#include "base/json.h"

namespace llmq {

inline constexpr const char* kTiktokenFile = "tiktoken.model";

// `config` is tokenizer_config.json. Error(kUnsupported) for a class of tokenizers that is not known;
// Error(kBadInput) with the line of what is no token.
Json tiktoken_tokenizer(Io& io, const Path& file, const Json& config);

}  // namespace llmq
