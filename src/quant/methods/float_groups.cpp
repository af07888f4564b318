// Errors of a group are made first, as vectors, and then added one after another in FP64.
#include "quant/methods/float_groups.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "quant/methods/float_value.h"
#include "tensor/block_scales.h"
#include "tensor/mxfp4.h"

namespace llmq {
namespace {

constexpr std::int64_t kMostInGroup = kMxGroup;
// Of E4M3's numbers above and below the first candidate, eight to an octave: 1.8 and 0.5 times it.
constexpr int kLevelsAbove = 7, kLevelsBelow = 8, kLastLevel = 126, kLastExponent = 254;
constexpr int kLastPower = 126;  // of two, that is a normal number as its reciprocal is

// Scaled by errors of one group; `importance` is empty where all columns are alike.
template <WeightType kType>
double lost_by(std::span<const float> weight, std::span<const float> importance, float scale) {
  std::array<double, kMostInGroup> off;
  for (std::size_t k = 0; k < weight.size(); ++k) {
    const float size = std::fabs(weight[k]);
    off[k] = static_cast<double>(rounded_magnitude<kType>(size / scale)) * scale - size;
  }
  double sum = 0;
  for (std::size_t k = 0; k < weight.size(); ++k)
    sum += off[k] * off[k] * (importance.empty() ? 1.0 : static_cast<double>(importance[k]));
  return sum;
}

float largest_of(std::span<const float> group) {
  float largest = 0;
  for (const float value : group) largest = std::max(largest, std::fabs(value));
  return largest;
}

float global_for(float largest, float range, bool power_of_two) {
  const float global = nvfp4_global(largest, range);
  return power_of_two ? std::ldexp(1.0f, std::clamp(std::ilogb(global), -kLastPower, kLastPower)) : global;
}

}  // namespace

float float_group_global(float largest, bool search, bool power_of_two) {
  return global_for(largest, search ? kRoomToSearch : kWholeRange, power_of_two);
}

float float_input_global(float largest, bool power_of_two) {
  return global_for(largest, kWholeRange, power_of_two);
}

float float_group_reach(float global) { return kE2M1Top * nvfp4_scale(kLastLevel, global); }

float largest_magnitude(std::span<const float> weight, ThreadPool& pool) {
  constexpr std::size_t kItem = 1 << 16;
  std::vector<float> largest((weight.size() + kItem - 1) / kItem);
  pool.parallel_for(largest.size(), [&](std::size_t item, int) {
    largest[item] = largest_of(weight.subspan(item * kItem, std::min(kItem, weight.size() - item * kItem)));
  });
  return largest_of(largest);
}

float global_scale_of(const QuantScheme& scheme, std::span<const float> weight, bool search, float given,
                      ThreadPool& pool) {
  if (scheme.scale_form() != ScaleForm::kTwoLevel) return 0;
  return given != 0 ? given : float_group_global(largest_magnitude(weight, pool), search);
}

int FloatScales::count() const {
  if (!search_) return 1;
  return scheme_.scale_form() == ScaleForm::kExponent ? 3 : 1 + kLevelsAbove + kLevelsBelow;
}

float FloatScales::at(float largest, int candidate) const {
  if (scheme_.scale_form() == ScaleForm::kTwoLevel) {
    const int first = nvfp4_byte(largest / kE2M1Top * global_);
    const int off = candidate == 0              ? 0
                    : candidate <= kLevelsAbove ? kLevelsAbove + 1 - candidate
                                                : kLevelsAbove - candidate;
    return nvfp4_scale(static_cast<std::uint8_t>(std::clamp(first + off, 1, kLastLevel)), global_);
  }
  const WeightType type = scheme_.weight_type;
  if (largest == 0) return mxfp4_scale(0);
  const int byte = !search_ ? mx_byte(largest, type)
                            : ocp_byte(largest, type) + (candidate == 0   ? 0
                                                         : candidate == 1 ? 1
                                                                          : -1);
  return mxfp4_scale(static_cast<std::uint8_t>(std::clamp(byte, 0, kLastExponent)));
}

float search_float_scale(std::span<const float> group, std::span<const float> importance,
                         const FloatScales& scales) {
  const auto lost = [&](float scale) {
    return scales.type() == WeightType::kFloat4 ? lost_by<WeightType::kFloat4>(group, importance, scale)
                                                : lost_by<WeightType::kFloat8>(group, importance, scale);
  };
  const float largest = largest_of(group);
  float best = scales.at(largest, 0);
  if (scales.count() == 1 || largest == 0) return best;
  double least = lost(best);
  for (int i = 1; i < scales.count(); ++i) {
    const float scale = scales.at(largest, i);
    if (const double loss = lost(scale); loss < least) least = loss, best = scale;
  }
  return best;
}

QuantizedMatrix round_float_groups(std::span<const float> weight, std::int64_t rows, std::int64_t columns,
                                   const QuantScheme& scheme, const FloatGroupRounding& how,
                                   ThreadPool& pool) {
  QuantizedMatrix matrix;
  matrix.scheme = scheme;
  matrix.out_features = rows;
  matrix.in_features = columns;
  matrix.global_scale = global_scale_of(scheme, weight, how.search, how.global_scale, pool);
  const FloatScales scales(scheme, how.search, matrix.global_scale);
  const auto groups = static_cast<std::size_t>(matrix.groups()),
             width = static_cast<std::size_t>(scheme.group_size);
  matrix.codes.resize(weight.size());
  matrix.scales.resize(static_cast<std::size_t>(rows) * groups);
  matrix.zeros.assign(matrix.scales.size(), static_cast<std::uint8_t>(scheme.middle()));
  pool.parallel_for(static_cast<std::size_t>(rows), [&](std::size_t row, int) {
    for (std::size_t g = 0; g < groups; ++g) {
      const std::size_t first = (row * groups + g) * width;
      const std::span<const float> group = weight.subspan(first, width);
      const float scale = search_float_scale(
          group, how.importance.empty() ? how.importance : how.importance.subspan(g * width, width), scales);
      matrix.scales[row * groups + g] = scale;
      for (std::size_t k = 0; k < width; ++k)
        matrix.codes[first + k] = float_code(group[k] / scale, scheme.weight_type);
    }
  });
  return matrix;
}

}  // namespace llmq
