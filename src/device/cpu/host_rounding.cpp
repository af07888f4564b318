#include "device/host_rounding.h"

#include <cstdlib>
#include <string_view>

#include "device/cpu/host_level.h"

namespace llmq {
namespace {

// As make_cpu_backend chooses, but what is misspelt there is its to refuse.
const CpuKernels& choose() {
  const char* const forced = std::getenv("LLMQ_CPU_ISA");
  const std::string_view name = forced == nullptr ? "" : forced;
  const bool scalar = name == "scalar", avx2 = name == "avx2";
  if (!scalar && !avx2 && avx512_level() != nullptr) return *avx512_level();
  if (!scalar && avx2_level() != nullptr) return *avx2_level();
  return *scalar_level();
}

}  // namespace

const CpuKernels& host_level() {
  static const CpuKernels& chosen = choose();
  return chosen;
}

void host_range(const float* w, std::int64_t n, float& low, float& high) {
  const LeastMost range = host_level().least_most(w, n);
  low = range.least;
  high = range.most;
}

void host_multiply(float* product, const float* w, const float* s, std::int64_t n) {
  host_level().scale_channels(product, w, s, n);
}

void host_round_difference(float* difference, const float* w, std::int64_t n, HostGrid grid) {
  host_level().round_difference(difference, w, n, {grid.scale, grid.zero, grid.top});
}

void host_scaled_difference(float* difference, const float* scaled, const float* inverse, const float* w,
                            std::int64_t n, HostGrid grid) {
  host_level().scaled_difference(difference, scaled, inverse, w, n, {grid.scale, grid.zero, grid.top});
}

}  // namespace llmq
