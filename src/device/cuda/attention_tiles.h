// A batch's rows as the blocks of kernels/cuda/tile_attention.h take them.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include "device/backend.h"
#include "kernels/cuda/tile_attention.h"

namespace llmq {

// The rows [first, end) of a batch; rows in the tiles count from `first`. first_block: where each row's block table begins, in a table of all.
inline std::vector<cuda::AttentionTile> attention_tiles(std::span<const SequenceRows> sequences, std::span<const std::int64_t> first_block,
                                                        std::int64_t first, std::int64_t end, std::int64_t group) {
  std::vector<cuda::AttentionTile> tiles;
  for (const SequenceRows& s : sequences) {
    const std::int64_t from = std::max(first, s.first_row), rows = std::min(end, s.first_row + s.rows) - from;
    for (std::int64_t pair = 0; pair < rows * group; pair += cuda::kPairs)
      tiles.push_back({static_cast<std::int32_t>(from - first), static_cast<std::int32_t>(rows), static_cast<std::int32_t>(pair), 0,
                       s.context + from - s.first_row, first_block[static_cast<std::size_t>(from)]});
  }
  return tiles;
}

}  // namespace llmq
