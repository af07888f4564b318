// The text of a Jinja template to tokens, as jinja2 3.1 cuts it with trim_blocks and lstrip_blocks
// (Transformers' settings): a block takes the line break behind it, blanks before a block at the start of a
// line go, `-` takes all white space on its side and `+` none; one line break at the end of the source goes.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace llmq::jinja {

enum class TokenKind {
  kData,
  kBlockBegin,
  kBlockEnd,
  kOutputBegin,
  kOutputEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;  // of data, name, operator; the value of a string
  std::int64_t integer = 0;
  double real = 0;
};

// Error(kBadInput) with `file` and line. The last token is kEnd.
std::vector<Token> tokens_of(std::string_view source, const std::string& file);

}  // namespace llmq::jinja
