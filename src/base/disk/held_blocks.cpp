#include "base/disk/held_blocks.h"

#include <algorithm>

namespace llmq {
namespace {

void append(std::vector<BlockRange>& ranges, BlockRange range) {
  if (!ranges.empty() && ranges.back().last == range.first)
    ranges.back().last = range.last;
  else
    ranges.push_back(range);
}

}  // namespace

// Afterwards no run goes across `at`.
void HeldBlocks::cut(std::uint64_t at) {
  auto after = runs_.lower_bound(at);
  if (after == runs_.begin() || std::prev(after)->second.last <= at) return;
  Run& before = std::prev(after)->second;
  runs_.emplace_hint(after, at, before);
  before.last = at;
}

std::vector<BlockRange> HeldBlocks::take(BlockRange range) {
  std::vector<BlockRange> fresh;
  if (range.first >= range.last) return fresh;
  cut(range.first);
  cut(range.last);
  auto run = runs_.lower_bound(range.first);
  for (std::uint64_t at = range.first; at < range.last;) {
    if (run != runs_.end() && run->first == at) {
      ++run->second.holders;
      at = run->second.last;
      ++run;
      continue;
    }
    const std::uint64_t end = run == runs_.end() ? range.last : std::min(range.last, run->first);
    runs_.emplace_hint(run, at, Run{end, 1});
    append(fresh, {at, end});
    at = end;
  }
  return fresh;
}

std::vector<BlockRange> HeldBlocks::give(BlockRange range) {
  std::vector<BlockRange> freed;
  if (range.first >= range.last) return freed;
  cut(range.first);
  cut(range.last);
  for (auto run = runs_.lower_bound(range.first); run != runs_.end() && run->first < range.last;) {
    if (--run->second.holders > 0) {
      ++run;
      continue;
    }
    append(freed, {run->first, run->second.last});
    run = runs_.erase(run);
  }
  return freed;
}

}  // namespace llmq
