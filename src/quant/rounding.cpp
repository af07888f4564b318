// Built with -O3 (CMakeLists.txt): every inner loop is elementwise or runs in sixteen lanes, and rounds the
// same at any vector width.
#include "quant/rounding.h"

#include <algorithm>

#include "kernels/common/code_value.h"
#include "tensor/quantized_matrix.h"

namespace llmq {
namespace {

constexpr int kLanes = 16;

// Nearest integer, ties to even, for |x| < 2^22: adding 1.5 * 2^23 leaves no fraction bits.
inline float nearest(float x) {
  constexpr float kMagic = 12582912.0f;
  return (x + kMagic) - kMagic;
}

inline float clamp_code(float code, float top) {
  code = code < 0.0f ? 0.0f : code;
  return code > top ? top : code;
}

inline float code_of(float weight, GroupGrid grid) {
  return clamp_code(nearest(weight / grid.scale) + grid.zero, grid.top);
}

}  // namespace

GroupRange find_range(const float* weight, std::int64_t count) {
  float low[kLanes] = {}, high[kLanes] = {};
  std::int64_t k = 0;
  for (; k + kLanes <= count; k += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) {
      const float w = weight[k + lane];
      low[lane] = w < low[lane] ? w : low[lane];
      high[lane] = w > high[lane] ? w : high[lane];
    }
  GroupRange range;
  for (; k < count; ++k) {
    range.low = std::min(range.low, weight[k]);
    range.high = std::max(range.high, weight[k]);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    range.low = std::min(range.low, low[lane]);
    range.high = std::max(range.high, high[lane]);
  }
  return range;
}

GroupGrid grid_for(GroupRange range, const QuantScheme& scheme) {
  GroupGrid grid;
  grid.top = static_cast<float>(scheme.code_count() - 1);
  if (scheme.symmetric) {
    grid.scale = stored_scale(2.0f * std::max(-range.low, range.high) / grid.top, scheme.scale_dtype);
    grid.zero = static_cast<float>(scheme.middle());
  } else {
    grid.scale = stored_scale((range.high - range.low) / grid.top, scheme.scale_dtype);
    grid.zero = clamp_code(nearest(-range.low / grid.scale), grid.top);
  }
  return grid;
}

void round_codes(const float* __restrict weight, std::int64_t count, GroupGrid grid,
                 std::uint8_t* __restrict codes) {
  for (std::int64_t k = 0; k < count; ++k)
    codes[k] = static_cast<std::uint8_t>(static_cast<int>(code_of(weight[k], grid)));
}

void round_difference(const float* __restrict weight, std::int64_t count, GroupGrid grid,
                      float* __restrict difference) {
  for (std::int64_t k = 0; k < count; ++k)
    difference[k] = (code_of(weight[k], grid) - grid.zero) * grid.scale - weight[k];
}

void scaled_difference(const float* __restrict weight, std::int64_t count, std::int64_t group,
                       const float* __restrict s, const float* __restrict inverse, const QuantScheme& scheme,
                       float* __restrict scratch, float* __restrict difference) {
  for (std::int64_t k = 0; k < count; ++k) scratch[k] = weight[k] * s[k];
  for (std::int64_t first = 0; first < count; first += group) {
    const std::int64_t end = std::min(first + group, count);
    const GroupGrid grid = grid_for(find_range(scratch + first, end - first), scheme);
    for (std::int64_t k = first; k < end; ++k)
      difference[k] = (code_of(scratch[k], grid) - grid.zero) * grid.scale * inverse[k] - weight[k];
  }
}

}  // namespace llmq
