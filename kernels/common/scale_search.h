// How one row of a group finds its scale and zero: which candidates there are, in which order, and what is
// kept. The host decides by these lines for each row of a tile (quant/methods/gptq/group_scales.cpp,
// coordinate_descent.cpp), a device for each row of a weight (kernels/cuda/group_search.h, tile_rounding.h);
// sums over the columns of the group are theirs (kernels/common/tile_arithmetic.h).
//
//   range     the range as it is; the range shrunk, both ends together or one alone (asymmetric); for a
//             symmetric scheme shrunk or slightly widened, and the full range: scale = -w_m / 2^(b-1) with
//             w_m the weight of largest magnitude, which then lies exactly on code 0
//   trials    scales times 1 + i step for |i| <= moves; asymmetric: the best of them with the zero one up and
//             one down too
//   descent   the best scale for codes that stand; the zero one up or down
//
// Every scale is one as it is stored. The first of equals wins, and what is not a number never does.
#pragma once
#include <stdint.h>

#include "kernels/common/anywhere.h"
#include "kernels/common/tile_arithmetic.h"

namespace llmq {

enum class ScaleType : unsigned char { kF32, kBF16, kF16 };

// The nearest scale that the type represents, of at least its smallest normal number's magnitude.
LLMQ_ANYWHERE float stored_as(float scale, ScaleType type) {
  const float rounded = type == ScaleType::kF16    ? to_float(to_float16(scale))
                        : type == ScaleType::kBF16 ? to_float(to_bfloat16(scale))
                                                   : scale;
  const float least = type == ScaleType::kF16 ? 0x1p-14f : 0x1p-126f;
  const float magnitude = float_from_bits(bits_from_float(rounded) & 0x7fffffffu);
  return magnitude < least ? float_from_bits(bits_from_float(least) | (bits_from_float(scale) & 0x80000000u))
                           : rounded;
}

struct RowGrid {
  float scale = 1, zero = 0;
};
struct GridRule {
  bool symmetric = false;
  ScaleType stored = ScaleType::kBF16;
  float top = 15, middle = 8;  // codes 0 .. top; the zero of a symmetric scheme
  bool float8 = false;         // codes are E4M3: for grid_of() and rounded_value()
};

struct RowRange {
  float low = 0, high = 0;  // low <= 0 <= high

  LLMQ_ANYWHERE void see(float w) {
    low = w < low ? w : low;
    high = w > high ? w : high;
  }
};

LLMQ_ANYWHERE float clamp_code(float code, float top) {
  code = code < 0.0f ? 0.0f : code;
  return code > top ? top : code;
}

// quant/methods/rounding.h has the rule in words.
LLMQ_ANYWHERE RowGrid grid_of(RowRange range, GridRule rule) {
  if (rule.float8)
    return {stored_as((-range.low < range.high ? range.high : -range.low) / kFloat8Top, rule.stored),
            rule.middle};
  if (rule.symmetric)
    return {stored_as(2.0f * (-range.low < range.high ? range.high : -range.low) / rule.top, rule.stored),
            rule.middle};
  const float scale = stored_as((range.high - range.low) / rule.top, rule.stored);
  return {scale, clamp_code(nearest<OneRow>(-range.low / scale), rule.top)};
}

// The value of the code nearest to w.
LLMQ_ANYWHERE float rounded_value(float w, RowGrid grid, GridRule rule) {
  if (rule.float8) return to_float(to_float8(w / grid.scale)) * grid.scale;
  return code_steps<OneRow>(w, grid.scale, grid.zero, rule.top) * grid.scale;
}

struct RangeCandidates {
  static constexpr int kShrinks = 20;  // asymmetric: factors 1, 0.975 .. 0.525 of either end or both
  static constexpr float kShrinkStep = 0.025f;
  static constexpr int kSymmetricShrinks = 25;  // symmetric: factors 1.05, 1.03 .. 0.57
  static constexpr float kWidest = 1.05f, kSymmetricStep = 0.02f;
  static constexpr int kMost =
      1 + (2 * kSymmetricShrinks > 3 * (kShrinks - 1) ? 2 * kSymmetricShrinks : 3 * (kShrinks - 1));

  GridRule rule;
  bool full_range = false;
  bool searched = true;  // else the range as it is, alone

  LLMQ_ANYWHERE int count() const {
    if (!searched) return 1;
    return 1 + (!rule.symmetric ? 3 * (kShrinks - 1)
                : full_range    ? 2 * kSymmetricShrinks
                                : kSymmetricShrinks);
  }
  LLMQ_ANYWHERE RowGrid at(int i, RowRange range) const {
    float low = 1, high = 1;  // what the ends shrink by
    if (i > 0 && rule.symmetric) {
      low = high = kWidest - kSymmetricStep * static_cast<float>(full_range ? (i - 1) / 2 : i - 1);
      if (full_range && i % 2 == 0) {
        const float largest = -range.low > range.high ? range.low : range.high;
        return {stored_as(-low * largest / rule.middle, rule.stored), rule.middle};
      }
    } else if (i > 0) {
      const int steps = 1 + (i - 1) / 3;
      const float factor = 1.0f - kShrinkStep * static_cast<float>(steps);
      const int ends = (i - 1) % 3;  // both, the lower, the upper
      low = ends == 2 ? 1.0f : factor;
      high = ends == 1 ? 1.0f : factor;
    }
    return grid_of({range.low * low, range.high * high}, rule);
  }
};

struct ScaleTrials {
  int moves;
  float step;
  LLMQ_ANYWHERE int count(bool symmetric) const { return 2 * moves + 1 + (symmetric ? 0 : 2); }
};
inline constexpr ScaleTrials kCoarseTrials{3, 0.04f}, kFineTrials{2, 0.015f};

// trial(0), judge(0), trial(1), judge(1) ..: trials depend on what was judged before.
struct RowTrials {
  RowGrid first, best;
  float least = __builtin_inff();

  LLMQ_ANYWHERE static RowTrials around(RowGrid grid) { return {grid, grid, __builtin_inff()}; }
  LLMQ_ANYWHERE RowGrid trial(int i, ScaleTrials trials, GridRule rule) const {
    if (i <= 2 * trials.moves) {  // 0, 1, -1, 2, -2 ..
      const float factor = 1.0f + trials.step * static_cast<float>(i % 2 == 1 ? (i + 1) / 2 : -(i / 2));
      return {stored_as(first.scale * factor, rule.stored), first.zero};
    }
    return {best.scale, clamp_code(first.zero + (i == 2 * trials.moves + 1 ? 1.0f : -1.0f), rule.top)};
  }
  LLMQ_ANYWHERE void judge(RowGrid tried, float loss) {
    if (!(loss < least)) return;
    least = loss;
    best = tried;
  }
};

// With Y = D G and q the steps of the group's codes, which stand: slope = Y.q, curve = q G q^T. The scale
// that loses least, where it loses less.
struct ScaleChange {
  float scale, change;
};
LLMQ_ANYWHERE ScaleChange refit_scale(float scale, float slope, float curve, ScaleType stored) {
  if (!(curve > 0)) return {scale, 0};
  const float fresh = stored_as(scale + slope / curve, stored), step = fresh - scale;
  if (!(step * (2 * slope - step * curve) > 0)) return {scale, 0};
  return {fresh, step};
}

// What the zero falls by and every step of the group rises by, 1, -1 or 0. slope: the sum of Y over the
// group; whole: of G. Values rise by t, D falls by it: the loss changes by -2 t slope + t^2 whole.
LLMQ_ANYWHERE float zero_shift(RowGrid grid, float slope, float whole, float top) {
  const float rise = grid.scale * slope > 0 ? 1.0f : -1.0f, t = rise * grid.scale;
  const bool fits = rise > 0 ? grid.zero > 0 : grid.zero < top;
  return fits && 2 * t * slope - t * t * whole > 0 ? rise : 0.0f;
}

}  // namespace llmq
