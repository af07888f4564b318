// A weight as panels of B, and the partition of products with it (kernels/cpu/cpu_kernels.h says what a panel
// is).
#pragma once
#include "base/threads.h"
#include "device/backend.h"
#include "device/cpu/product_items.h"
#include "device/cpu/worker_scratch.h"
#include "kernels/cpu/cpu_kernels.h"

namespace llmq {

class PackedWeight final : public PreparedWeight {
 public:
  const CpuKernels* kernels = nullptr;
  CpuFormat format = CpuFormat::kF32;
  Buffer panels;
  std::int64_t panel_bytes = 0;  // of one panel over the whole depth

  const unsigned char* panel(std::int64_t index) const {
    return panels.as<unsigned char>() + index * panel_bytes;
  }
};

struct CpuWork {
  const CpuKernels* kernels;
  ThreadPool* pool;
  WorkerScratch* scratch;
  std::shared_ptr<MemoryResource> memory;  // for what one call needs
};

inline CpuFormat format_of(Compute compute) {
  return compute == Compute::kFloat32 ? CpuFormat::kF32 : CpuFormat::kBF16;
}
inline std::int64_t format_bytes(CpuFormat format) { return format == CpuFormat::kF32 ? 4 : 2; }

// One row of a weight of any plain type, in the format; `wide` has room for the row as FP32.
void row_in_format(const CpuWork& work, CpuFormat format, void* to, const TensorView& from, std::int64_t row,
                   float* wide);

std::unique_ptr<PackedWeight> pack_weight(const CpuWork& work, const TensorView& weight, Compute compute);
// At most kMostCallsAtOnce, none of whose results is an input of another.
void multiply(const CpuWork& work, std::span<const ProductCall<PackedWeight>> calls);
// Backend::score_products; w.out_features > 0.
void score_in_tiles(const CpuWork& work, const TensorView& x, const PackedWeight& w,
                    std::span<const std::int32_t> targets, std::span<RowScore> scores);
void accumulate_gram(const CpuWork& work, const TensorView& g, const TensorView& x);
void evaluate_form(const CpuWork& work, std::span<double> loss, const TensorView& d, const PackedWeight& g);

}  // namespace llmq
