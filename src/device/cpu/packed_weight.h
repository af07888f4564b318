// A weight as panels of B, and the partition of products with it (kernels/cpu/cpu_kernels.h says what a panel
// is).
#pragma once
#include "device/cpu/cpu_weight.h"
#include "device/cpu/product_items.h"

namespace llmq {

class PackedWeight final : public CpuWeight {
 public:
  static constexpr Kind kKind = Kind::kPacked;
  explicit PackedWeight(const CpuWork& work) : CpuWeight(kKind, work) {}

  CpuFormat format = CpuFormat::kF32;
  Buffer panels;
  std::int64_t panel_bytes = 0;  // of one panel over the whole depth

  const unsigned char* panel(std::int64_t index) const {
    return panels.as<unsigned char>() + index * panel_bytes;
  }
};

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
