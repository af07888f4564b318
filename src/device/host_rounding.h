// Rounding of rows in host memory by the processor's widest vectors, whatever backend runs: the rules are
// those of quant/methods/rounding.h, the bits are the same at every level (kernels/cpu/ops/rounding.h).
#pragma once
#include <cstdint>

namespace llmq {

struct HostGrid {
  float scale = 1, zero = 0, top = 15;
};

void host_range(const float* w, std::int64_t n, float& low, float& high);  // low <= 0 <= high
void host_multiply(float* product, const float* w, const float* s, std::int64_t n);
// difference[k] = value(code(w[k])) - w[k]
void host_round_difference(float* difference, const float* w, std::int64_t n, HostGrid grid);
// difference[k] = value(code(scaled[k])) * inverse[k] - w[k]
void host_scaled_difference(float* difference, const float* scaled, const float* inverse, const float* w,
                            std::int64_t n, HostGrid grid);

}  // namespace llmq
