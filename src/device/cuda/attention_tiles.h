// A batch's rows as the blocks of kernels/cuda/tile_attention.h take them.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include "device/backend.h"
#include "kernels/cuda/tile_attention.h"

namespace llmq {

struct AttentionTiles {
  std::vector<cuda::AttentionTile> tiles;
  std::int64_t wide_count = 0;  // the first of them have kWidePairs pairs each, all others kPairs
};

// The rows [first, end) of a batch; rows in the tiles count from `first`. first_block: where each row's block
// table begins, in a table of all. Sequences of more pairs than a narrow tile has are divided into wide ones.
inline AttentionTiles attention_tiles(std::span<const SequenceRows> sequences,
                                      std::span<const std::int64_t> first_block, std::int64_t first,
                                      std::int64_t end, std::int64_t group) {
  AttentionTiles all;
  for (const bool wide : {true, false}) {
    for (const SequenceRows& s : sequences) {
      const std::int64_t from = std::max(first, s.first_row),
                         rows = std::min(end, s.first_row + s.rows) - from;
      if ((rows * group > cuda::kPairs) != wide) continue;
      for (std::int64_t pair = 0; pair < rows * group; pair += wide ? cuda::kWidePairs : cuda::kPairs)
        all.tiles.push_back({static_cast<std::int32_t>(from - first), static_cast<std::int32_t>(rows),
                             static_cast<std::int32_t>(pair), 0, s.context + from - s.first_row,
                             first_block[static_cast<std::size_t>(from)]});
    }
    if (wide) all.wide_count = static_cast<std::int64_t>(all.tiles.size());
  }
  return all;
}

}  // namespace llmq
