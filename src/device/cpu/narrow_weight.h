// A weight that stays in few bits in memory, and products with it (kernels/cpu/ops/narrow.h has the order of
// the sum, narrow_codes.h the bytes, docs/adr/0009 the reasons).
#pragma once
#include <memory>
#include <span>

#include "device/cpu/packed_weight.h"
#include "tensor/quantized_matrix.h"

namespace llmq {

class NarrowWeight final : public CpuWeight {
 public:
  static constexpr Kind kKind = Kind::kNarrow;
  explicit NarrowWeight(const CpuWork& work) : CpuWeight(kKind, work) {}

  NarrowLayout layout;
  CodeBook book = {};      // the layout's, where it has one
  std::int64_t group = 0;  // columns of a group as they are, before padding
  Buffer panels;
  std::int64_t panel_bytes = 0;

  const unsigned char* panel(std::int64_t index) const {
    return panels.as<unsigned char>() + index * panel_bytes;
  }
  bool needs_sums() const { return layout.minima && compute == Compute::kBFloat16; }  // of the rows' groups
};

// Integers and floats of 4 bits with inputs of 16 bits whose groups lie side by side: all there is but GPTQ's
// columns in another order, columns that were kept as they are, and minima or codes of a table in groups that
// are not of whole blocks of codes.
bool can_stay_narrow(const QuantizedMatrix& matrix);

std::unique_ptr<NarrowWeight> narrow_weight(const CpuWork& work, const QuantizedMatrix& matrix,
                                            Compute compute);
void multiply(const CpuWork& work, const TensorView& y, const TensorView& x, const NarrowWeight& w,
              const float* bias);

// Up to four expansions of the codes cost less than a panel of them in scratch memory.
inline bool has_few_rows(const ProductCall<NarrowWeight>& call) {
  return call.w->compute == Compute::kBFloat16 && call.x.rows() <= 4 * call.w->kernels->narrow_rows;
}
// At most kMostCallsAtOnce of few rows in one round of the workers.
void multiply_few(const CpuWork& work, std::span<const ProductCall<NarrowWeight>> calls);

}  // namespace llmq
