// tokenizer.model as bytes: what is read, what is skipped, what is refused.
#include <gtest/gtest.h>

#include "export/gguf/sentencepiece_model.h"
#include "tests/unit/io/hostile_bytes.h"

namespace llmq {
namespace {

using testing::as_bytes;
using testing::expect_refusal;
using testing::little_endian;

std::string field(char key, const std::string& bytes) {
  return std::string(1, key) + static_cast<char>(bytes.size()) + bytes;
}
std::string piece(const std::string& text, float score, int type) {
  std::string bytes = field('\x0a', text) + '\x15' + little_endian(score);
  if (type != 0) bytes += std::string("\x18") + static_cast<char>(type);
  return field('\x0a', bytes);
}

std::vector<SentencePiece> parse(const std::string& bytes) {
  return parse_sentencepiece_model(as_bytes(bytes), "t.model");
}

TEST(SentencePieceModel, ReadsPiecesAndSkipsTheRest) {
  const std::string trainer = field('\x12', "trainer"), number = std::string("\x20\x96\x01"),
                    fixed = std::string("\x31") + std::string(8, 'x');
  const auto pieces = parse(piece("<unk>", 0, 2) + trainer + piece("\342\226\201a", -1.5f, 0) + number +
                            fixed + piece("<0x0A>", 0, 6));
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[0].type, TokenType::kUnknown);
  EXPECT_EQ(pieces[1].text, "\342\226\201a");
  EXPECT_EQ(pieces[1].score, -1.5f);
  EXPECT_EQ(pieces[1].type, TokenType::kNormal);
  EXPECT_EQ(pieces[2].type, TokenType::kByte);
}

TEST(SentencePieceModel, RefusesOtherBytes) {
  const auto refuse = [](const std::string& bytes, std::string_view part) {
    expect_refusal(ErrorKind::kBadInput, part, [&] { parse(bytes); });
  };
  refuse("", "no pieces");
  refuse(field('\x12', "trainer"), "no pieces");
  refuse("\x0a\x7f", "127 bytes are announced");
  refuse(std::string("\x0a") + std::string(9, '\xff') + "\x7f", "announced");
  refuse(std::string(11, '\xff'), "does not end");
  refuse("\x0b", "kind 3");
  refuse(piece("a", 0, 7), "type 7");
  refuse(field('\x0a', "\x15xx"), "announced");
}

}  // namespace
}  // namespace llmq
