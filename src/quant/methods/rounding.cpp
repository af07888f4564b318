// Loops over a group's weights are the processor's vector kernels (device/host_rounding.h); what is decided
// once per group is here.
#include "quant/methods/rounding.h"

#include <algorithm>
#include <cmath>

#include "base/half.h"
#include "device/host_rounding.h"
#include "quant/methods/float_groups.h"
#include "quant/methods/float_value.h"
#include "tensor/block_scales.h"
#include "tensor/quantized_matrix.h"

namespace llmq {
namespace {

inline float code_of(float weight, GroupGrid grid) {
  return clamp_code(nearest<OneRow>(weight / grid.scale) + grid.zero, grid.top);
}

float float8_value(float weight, GroupGrid grid) {
  GridRule rule;
  rule.float8 = true;
  return rounded_value(weight, {grid.scale, grid.zero}, rule);
}

// By compressed-tensors' own scale, as wherever the global scale puts it: with 3 bits behind its first.
void float_difference(const float* scaled, const float* weight, const float* inverse, std::int64_t count,
                      const FloatScales& scales, float* difference) {
  const GroupRange range = find_range(scaled, count);
  float scale = 0;
  if (const float largest = std::max(-range.low, range.high); scales.has_levels()) {
    const std::uint32_t bits = bits_from_float(largest / kE2M1Top);
    scale = float_from_bits((bits + (1u << 19)) & ~((1u << 20) - 1));
  } else {
    scale = scales.at(largest, 0);
  }
  for (std::int64_t k = 0; k < count; ++k) {
    const float size = std::fabs(scaled[k]) / scale;
    const float value =
        (scales.type() == WeightType::kFloat4 ? rounded_magnitude<WeightType::kFloat4>(size)
                                              : rounded_magnitude<WeightType::kFloat8>(size)) *
        scale;
    difference[k] = scale > 0 ? (scaled[k] < 0 ? -value : value) * inverse[k] - weight[k] : -weight[k];
  }
}

HostGrid host_grid(GroupGrid grid) { return {grid.scale, grid.zero, grid.top}; }

}  // namespace

GroupRange find_range(const float* weight, std::int64_t count) {
  GroupRange range;
  host_range(weight, count, range.low, range.high);
  return range;
}

GridRule grid_rule(const QuantScheme& scheme) {
  return {scheme.symmetric, scale_type(scheme.scale_dtype), static_cast<float>(scheme.code_count() - 1),
          static_cast<float>(scheme.middle()), scheme.weight_type == WeightType::kFloat8};
}

GroupGrid grid_for(GroupRange range, const QuantScheme& scheme) {
  const GridRule rule = grid_rule(scheme);
  const RowGrid grid = grid_of({range.low, range.high}, rule);
  return {grid.scale, grid.zero, rule.top, rule.float8};
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
    for (std::int64_t k = 0; k < count; ++k) difference[k] = float8_value(weight[k], grid) - weight[k];
    return;
  }
  host_round_difference(difference, weight, count, host_grid(grid));
}

void scaled_difference(const float* weight, std::int64_t count, std::int64_t group, const float* s,
                       const float* inverse, const QuantScheme& scheme, float* scratch, float* difference) {
  host_multiply(scratch, weight, s, count);
  if (scheme.scale_form() != ScaleForm::kNumber) {
    const FloatScales scales(scheme, false, 1);
    for (std::int64_t first = 0; first < count; first += group)
      float_difference(scratch + first, weight + first, inverse + first, group, scales, difference + first);
    return;
  }
  for (std::int64_t first = 0; first < count; first += group) {
    const std::int64_t width = std::min(group, count - first);
    const GroupGrid grid = grid_for(find_range(scratch + first, width), scheme);
    if (grid.float8) {
      for (std::int64_t k = first; k < first + width; ++k)
        difference[k] = float8_value(scratch[k], grid) * inverse[k] - weight[k];
      continue;
    }
    host_scaled_difference(difference + first, scratch + first, inverse + first, weight + first, width,
                           host_grid(grid));
  }
}

}  // namespace llmq
