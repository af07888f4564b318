#include "export/gguf/sentencepiece_model.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"

namespace llmq {
namespace {

constexpr std::size_t kMostPieces = 1'000'000;

enum class Wire : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

class ProtobufCursor {
 public:
  ProtobufCursor(std::span<const std::byte> bytes, const std::string& file) : bytes_(bytes), file_(file) {}
  bool done() const { return bytes_.empty(); }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<std::uint64_t>(take(1)[0]);
      value |= (byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    refuse("a number does not end");
  }
  std::span<const std::byte> bytes() { return take(varint()); }
  float number() {
    float value = 0;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  // The key of the next field: its number and how it lies.
  std::pair<std::uint64_t, Wire> key() {
    const std::uint64_t word = varint();
    return {word >> 3, static_cast<Wire>(word & 7)};
  }
  void skip(Wire wire) {
    switch (wire) {
      case Wire::kVarint:
        varint();
        return;
      case Wire::kFixed64:
        take(8);
        return;
      case Wire::kBytes:
        bytes();
        return;
      case Wire::kFixed32:
        take(4);
        return;
    }
    refuse(fmt::format("a field of kind {}", static_cast<int>(wire)));
  }
  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorKind::kBadInput,
         {"this is no SentencePiece model: " + what, file_, {}, "download the file again"});
  }

 private:
  std::span<const std::byte> take(std::uint64_t count) {
    if (count > bytes_.size())
      refuse(fmt::format("{} bytes are announced and {} are left", count, bytes_.size()));
    const auto taken = bytes_.first(static_cast<std::size_t>(count));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }
  std::span<const std::byte> bytes_;
  const std::string& file_;
};

SentencePiece parse_piece(std::span<const std::byte> bytes, const std::string& file) {
  ProtobufCursor cursor(bytes, file);
  SentencePiece piece;
  while (!cursor.done()) {
    const auto [field, wire] = cursor.key();
    if (field == 1 && wire == Wire::kBytes) {
      const auto text = cursor.bytes();
      piece.text.assign(reinterpret_cast<const char*>(text.data()), text.size());
    } else if (field == 2 && wire == Wire::kFixed32) {
      piece.score = cursor.number();
    } else if (field == 3 && wire == Wire::kVarint) {
      const std::uint64_t type = cursor.varint();
      if (!is_token_type(static_cast<std::int64_t>(type)))
        cursor.refuse(fmt::format("a piece of type {}", type));
      piece.type = static_cast<TokenType>(type);
    } else {
      cursor.skip(wire);
    }
  }
  return piece;
}

}  // namespace

std::vector<SentencePiece> parse_sentencepiece_model(std::span<const std::byte> bytes,
                                                     const std::string& file) {
  ProtobufCursor cursor(bytes, file);
  std::vector<SentencePiece> pieces;
  while (!cursor.done()) {
    const auto [field, wire] = cursor.key();
    if (field != 1 || wire != Wire::kBytes) {
      cursor.skip(wire);
      continue;
    }
    if (pieces.size() == kMostPieces) cursor.refuse(fmt::format("more than {} pieces", kMostPieces));
    pieces.push_back(parse_piece(cursor.bytes(), file));
  }
  if (pieces.empty()) cursor.refuse("it has no pieces");
  return pieces;
}

}  // namespace llmq
