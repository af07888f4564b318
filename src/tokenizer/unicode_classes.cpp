// The ranges spread out to one byte per code point: 1.1 MB, of which ordinary text touches a few pages.
#include "tokenizer/unicode_classes.h"

#include <algorithm>
#include <vector>

namespace llmq {
namespace {

struct Range {
  std::uint32_t first, last;
  std::uint8_t classes;
};

constexpr Range kRanges[] = {
#include "tokenizer/unicode_ranges.inc"
};

}  // namespace

const std::uint8_t* unicode_classes() {
  static const std::vector<std::uint8_t> table = [] {
    std::vector<std::uint8_t> classes(0x110000);
    for (const Range& range : kRanges)
      std::fill(classes.begin() + range.first, classes.begin() + range.last + 1, range.classes);
    return classes;
  }();
  return table.data();
}

}  // namespace llmq
