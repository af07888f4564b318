// Loops over a group's weights are the processor's vector kernels (device/host_rounding.h); what is decided
// once per group is here.
#include "quant/rounding.h"

#include <algorithm>

#include "base/half.h"
#include "device/host_rounding.h"
#include "tensor/quantized_matrix.h"

namespace llmq {
namespace {

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

// value(code(w)) for float8.
inline float float8_value(float weight, float scale) { return to_float(to_float8(weight / scale)) * scale; }

HostGrid host_grid(GroupGrid grid) { return {grid.scale, grid.zero, grid.top}; }

}  // namespace

GroupRange find_range(const float* weight, std::int64_t count) {
  GroupRange range;
  host_range(weight, count, range.low, range.high);
  return range;
}

GroupGrid grid_for(GroupRange range, const QuantScheme& scheme) {
  GroupGrid grid;
  grid.top = static_cast<float>(scheme.code_count() - 1);
  grid.float8 = scheme.weight_type == WeightType::kFloat8;
  if (grid.float8) {
    grid.scale = stored_scale(std::max(-range.low, range.high) / kFloat8Top, scheme.scale_dtype);
    grid.zero = static_cast<float>(scheme.middle());
  } else if (scheme.symmetric) {
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
  if (grid.float8) {
    for (std::int64_t k = 0; k < count; ++k) codes[k] = to_float8(weight[k] / grid.scale).bits;
    return;
  }
  for (std::int64_t k = 0; k < count; ++k)
    codes[k] = static_cast<std::uint8_t>(static_cast<int>(code_of(weight[k], grid)));
}

void round_difference(const float* weight, std::int64_t count, GroupGrid grid, float* difference) {
  if (grid.float8) {
    for (std::int64_t k = 0; k < count; ++k) difference[k] = float8_value(weight[k], grid.scale) - weight[k];
    return;
  }
  host_round_difference(difference, weight, count, host_grid(grid));
}

void scaled_difference(const float* weight, std::int64_t count, std::int64_t group, const float* s,
                       const float* inverse, const QuantScheme& scheme, float* scratch, float* difference) {
  host_multiply(scratch, weight, s, count);
  for (std::int64_t first = 0; first < count; first += group) {
    const std::int64_t width = std::min(group, count - first);
    const GroupGrid grid = grid_for(find_range(scratch + first, width), scheme);
    if (grid.float8) {
      for (std::int64_t k = first; k < first + width; ++k)
        difference[k] = float8_value(scratch[k], grid.scale) * inverse[k] - weight[k];
      continue;
    }
    host_scaled_difference(difference + first, scratch + first, inverse + first, weight + first, width,
                           host_grid(grid));
  }
}

}  // namespace llmq
