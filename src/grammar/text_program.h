// Sets of texts as a network of nodes over bytes: what regular expressions and JSON schemas are compiled to.
//
// A node reads a byte of a range, splits into two ways, calls a rule (a node from which a way leads to the
// end) and goes on behind it, or ends the rule that it stands in; the end of no rule is the end of a text.
// Rules may call each other: JSON nests. Calls are limited to kMostLevels, and every node knows how many
// levels it needs to reach its end: where a way would need more it is not taken, so that every way that is
// taken can be finished.
//
// Networks are built from the end to the start: each function is told what comes next and returns where it
// begins. A network of more than kMostNodes nodes is refused (kUnsupported), and so is work that makes none
// (empty repetitions of empty repetitions).
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llmq {

using TextPlace = std::int32_t;  // of a node
inline constexpr TextPlace kTextEnd = 0;

struct TextNode {
  enum class Kind : std::uint8_t { kByte, kSplit, kCall, kEnd };
  static constexpr int kNever = 1 << 20;
  Kind kind = Kind::kEnd;
  std::uint8_t low = 0, high = 0;  // kByte
  TextPlace next = -1;             // kByte: behind it; kSplit: one way; kCall: behind the rule
  TextPlace other = -1;            // kSplit: the other way; kCall: the rule
  int levels = kNever;             // of calls to the end of the rule, at least
};

struct TextProgram {
  static constexpr int kMostLevels = 64;
  std::vector<TextNode> nodes;
  TextPlace start = 0;
};

using ByteSet = std::array<bool, 256>;

class TextProgramBuilder {
 public:
  static constexpr std::size_t kMostNodes = 1u << 16, kMostWork = 1u << 20;

  // `where`: what is compiled, for errors.
  explicit TextProgramBuilder(std::string where);

  TextPlace byte(std::uint8_t low, std::uint8_t high, TextPlace next);
  TextPlace either(TextPlace a, TextPlace b);
  TextPlace either(std::span<const TextPlace> ways);  // at least one
  TextPlace literal(std::string_view bytes, TextPlace next);
  TextPlace call(TextPlace rule, TextPlace next);
  // A place that others may refer to before it is known what stands there.
  TextPlace open();
  void close(TextPlace opened, TextPlace a, TextPlace b);
  void charge();  // one step of work

  // `writable`: bytes that can be written one by one; nothing else is needed to finish a text.
  // Error(kBadInput) where there is no text.
  TextProgram finish(TextPlace start, const ByteSet& writable) &&;

 private:
  TextPlace add(const TextNode& node);

  std::string where_;
  std::vector<TextNode> nodes_;
  std::size_t work_ = 0;
};

}  // namespace llmq
