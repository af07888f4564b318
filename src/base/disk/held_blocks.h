// Which blocks of a file are held, and by how many: disjoint runs of blocks with a number of holders each.
//
// Cost: the runs that a range meets, and a search among those held.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

namespace llmq {

struct BlockRange {
  std::uint64_t first = 0, last = 0;  // [first, last)
  bool operator==(const BlockRange&) const = default;
};

class HeldBlocks {
 public:
  std::vector<BlockRange> take(BlockRange range);  // what nobody held before, in order
  std::vector<BlockRange> give(BlockRange range);  // of a range that was taken: what nobody holds any more
  bool none() const { return runs_.empty(); }

 private:
  struct Run {
    std::uint64_t last = 0;
    int holders = 0;
  };
  void cut(std::uint64_t at);

  std::map<std::uint64_t, Run> runs_;  // by first block
};

}  // namespace llmq
