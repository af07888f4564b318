// A weight that stays in 4 or 8 bits in memory, and products with it (kernels/cpu/ops/narrow.h has the bytes and the
// order of the sum, docs/adr/0009 the reasons).
#pragma once
#include <memory>
#include <span>

#include "device/cpu/packed_weight.h"
#include "tensor/quantized_matrix.h"

namespace llmq {

class NarrowWeight final : public PreparedWeight {
 public:
  const CpuKernels* kernels = nullptr;
  NarrowLayout layout;
  std::int64_t group = 0;  // columns of a group as they are, before padding
  Buffer panels;
  std::int64_t panel_bytes = 0;

  const unsigned char* panel(std::int64_t index) const {
    return panels.as<unsigned char>() + index * panel_bytes;
  }
};

// Integer codes with inputs of 16 bits whose groups lie side by side: all there is but GPTQ's columns in another order
// and columns that were kept as they are.
bool can_stay_narrow(const QuantizedMatrix& matrix);

std::unique_ptr<NarrowWeight> narrow_weight(const CpuWork& work, const QuantizedMatrix& matrix,
                                            Compute compute);
void multiply(const CpuWork& work, const TensorView& y, const TensorView& x, const NarrowWeight& w,
              const float* bias);

struct NarrowCall {
  TensorView y, x;
  const NarrowWeight* w = nullptr;
  const float* bias = nullptr;
  // Up to four expansions of the codes cost less than a panel of them in scratch memory.
  bool few() const { return w->compute == Compute::kBFloat16 && x.rows() <= 4 * w->kernels->narrow_rows; }
};
inline constexpr std::size_t kMostNarrowCalls = 4;
// At most so many calls of few rows in one round of the workers.
void multiply_few(const CpuWork& work, std::span<const NarrowCall> calls);

}  // namespace llmq
