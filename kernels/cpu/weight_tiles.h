// A BF16 weight multiplied by tiles of exactly kRows rows: BF16 products, FP32 sums, in oneDNN's order, which
// is that of the AMX units where the processor has them.
//
// oneDNN chooses its kernel, and with it the order of sums, by shape and by the distance of the result's rows,
// so both are always the same: a row's result cannot depend on how many rows came with it. Which file implements
// this, oneDNN's or the one that has none, the build decides.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <memory>

namespace llmq {

class WeightTiles {
 public:
  static constexpr int64_t kRows = 64;
  virtual ~WeightTiles() = default;
  virtual size_t bytes() const = 0;
  virtual size_t scratch_bytes() const = 0;
  // c[kRows, columns] = a[kRows, depth] B in the calling thread alone; a and c contiguous, scratch aligned to
  // 64. Safe from several threads at once.
  virtual void multiply(const void* a, float* c, unsigned char* scratch) const = 0;
};

bool weight_tiles_built();
// weight BF16 [columns][depth], both at least 1; Error(kUnsupported) where it is not built in.
std::unique_ptr<WeightTiles> make_weight_tiles(const void* weight, int64_t columns, int64_t depth);

}  // namespace llmq
