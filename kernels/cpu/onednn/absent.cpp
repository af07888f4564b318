// In place of weight_tiles.cpp where the build found no oneDNN.
#include "base/error.h"
#include "kernels/cpu/weight_tiles.h"

namespace llmq {

bool weight_tiles_built() { return false; }

std::unique_ptr<WeightTiles> make_weight_tiles(const void*, int64_t, int64_t) {
  fail(ErrorKind::kUnsupported, "this build has no oneDNN, which the CPU level 'amx' computes with");
}

}  // namespace llmq
