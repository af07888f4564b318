// How far back a position looks: over all before it, over the last so many, or to the last multiple of so
// many.
//
//   window   p sees p - positions + 1 .. p
//   chunks   p sees p - p % positions .. p: a window that begins where a chunk does
//
// Both ends move forward only: of two positions the later one sees no earlier key.
#pragma once
#include <cstdint>

#include "kernels/common/anywhere.h"

namespace llmq {

struct LookBack {
  int64_t positions = 0;  // 0: all
  bool chunks = false;
  // The first position that `position` sees, from 0 on.
  LLMQ_ANYWHERE int64_t first_seen(int64_t position) const {
    if (positions <= 0) return 0;
    if (chunks) return position / positions * positions;
    return position < positions ? 0 : position - positions + 1;
  }
  // The last one that sees `position`, where not all behind it do.
  LLMQ_ANYWHERE int64_t last_seeing(int64_t position) const {
    return chunks ? position / positions * positions + positions - 1 : position + positions - 1;
  }
};

}  // namespace llmq
