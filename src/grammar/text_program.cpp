// Levels by Knuth's form of Dijkstra's algorithm: nodes get their least number in the order of the numbers.
#include "grammar/text_program.h"

#include <algorithm>

#include "base/error.h"

namespace llmq {
namespace {

using Kind = TextNode::Kind;

bool any_byte(const TextNode& node, const ByteSet& writable) {
  for (int byte = node.low; byte <= node.high; ++byte)
    if (writable[static_cast<std::size_t>(byte)]) return true;
  return false;
}

class Levels {
 public:
  Levels(std::vector<TextNode>& nodes, const ByteSet& writable)
      : nodes_(nodes), writable_(writable), users_(nodes.size()) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const TextNode& node = nodes[i];
      if (node.kind == Kind::kEnd) continue;
      users_[static_cast<std::size_t>(node.next)].push_back(static_cast<TextPlace>(i));
      if (node.kind != Kind::kByte && node.other != node.next)
        users_[static_cast<std::size_t>(node.other)].push_back(static_cast<TextPlace>(i));
    }
  }
  void find() {
    waiting_[0].push_back(kTextEnd);
    for (std::size_t level = 0; level < waiting_.size(); ++level)
      while (!waiting_[level].empty()) {
        const TextPlace place = waiting_[level].back();
        waiting_[level].pop_back();
        settle(place, static_cast<int>(level));
      }
  }

 private:
  TextNode& at(TextPlace place) { return nodes_[static_cast<std::size_t>(place)]; }
  void settle(TextPlace place, int level) {
    if (at(place).levels != TextNode::kNever) return;
    at(place).levels = level;
    for (const TextPlace user : users_[static_cast<std::size_t>(place)]) {
      const TextNode& node = at(user);
      int levels = level;
      if (node.kind == Kind::kByte && !any_byte(node, writable_)) continue;
      if (node.kind == Kind::kCall) levels = std::max(at(node.next).levels, 1 + at(node.other).levels);
      if (static_cast<std::size_t>(levels) < waiting_.size())
        waiting_[static_cast<std::size_t>(levels)].push_back(user);
    }
  }

  std::vector<TextNode>& nodes_;
  const ByteSet& writable_;
  std::vector<std::vector<TextPlace>> users_;
  std::array<std::vector<TextPlace>, TextProgram::kMostLevels + 1> waiting_;
};

}  // namespace

TextProgramBuilder::TextProgramBuilder(std::string where) : where_(std::move(where)) { nodes_.push_back({}); }

TextPlace TextProgramBuilder::add(const TextNode& node) {
  if (nodes_.size() == kMostNodes)
    fail(ErrorKind::kUnsupported, {fmt::format("needs more than {} nodes", kMostNodes),
                                   {},
                                   where_,
                                   "make it smaller, or its repetitions shorter"});
  nodes_.push_back(node);
  return static_cast<TextPlace>(nodes_.size() - 1);
}

void TextProgramBuilder::charge() {
  if (++work_ > kMostWork)
    fail(ErrorKind::kUnsupported, {"takes too long to read", {}, where_, "make its repetitions shorter"});
}

TextPlace TextProgramBuilder::byte(std::uint8_t low, std::uint8_t high, TextPlace next) {
  return add({Kind::kByte, low, high, next});
}

TextPlace TextProgramBuilder::either(TextPlace a, TextPlace b) {
  return a == b ? a : add({Kind::kSplit, 0, 0, a, b});
}

TextPlace TextProgramBuilder::either(std::span<const TextPlace> ways) {
  TextPlace place = ways.back();
  for (std::size_t i = ways.size() - 1; i-- > 0;) place = either(ways[i], place);
  return place;
}

TextPlace TextProgramBuilder::literal(std::string_view bytes, TextPlace next) {
  for (std::size_t i = bytes.size(); i-- > 0;)
    next = byte(static_cast<std::uint8_t>(bytes[i]), static_cast<std::uint8_t>(bytes[i]), next);
  return next;
}

// Where nothing is left behind it, a rule takes the place of the one that calls it.
TextPlace TextProgramBuilder::call(TextPlace rule, TextPlace next) {
  return next == kTextEnd ? rule : add({Kind::kCall, 0, 0, next, rule});
}

TextPlace TextProgramBuilder::open() {
  const auto here = static_cast<TextPlace>(nodes_.size());
  return add({Kind::kSplit, 0, 0, here, here});
}

void TextProgramBuilder::close(TextPlace opened, TextPlace a, TextPlace b) {
  TextNode& node = nodes_[static_cast<std::size_t>(opened)];
  node.next = a;
  node.other = b;
}

TextProgram TextProgramBuilder::finish(TextPlace start, const ByteSet& writable) && {
  Levels(nodes_, writable).find();
  if (nodes_[static_cast<std::size_t>(start)].levels == TextNode::kNever)
    fail(ErrorKind::kBadInput,
         {fmt::format("no text of this model's vocabulary can satisfy it within {} levels of nesting",
                      TextProgram::kMostLevels),
          {},
          where_,
          {}});
  return {std::move(nodes_), start};
}

}  // namespace llmq
