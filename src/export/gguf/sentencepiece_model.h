// tokenizer.model: the pieces of a SentencePiece model, read from its protobuf without the library.
//
//   ModelProto { repeated SentencePiece pieces = 1; ... }   SentencePiece { string piece = 1; float score =
//       2; Type type = 3 }
//
// Other fields are skipped. Bytes are hostile: every length is held against what is left. Source:
// sentencepiece_model.proto.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tokenizer/token_type.h"

namespace llmq {

struct SentencePiece {
  std::string text;
  float score = 0;
  TokenType type = TokenType::kNormal;
};

// By id. Error(kBadInput) for bytes that are no such model.
std::vector<SentencePiece> parse_sentencepiece_model(std::span<const std::byte> bytes,
                                                     const std::string& file);

}  // namespace llmq
