// cos and sin of position times frequency, in the order of operations of Transformers' modeling_rope_utils
// (5.23) and in its precisions.
//
//   default   f_i = 1 / theta^(2i/d)
//   linear    f_i / factor
//   dynamic   theta * (factor n / m - (factor - 1))^(d / (d - 2)) in place of theta once n positions exceed
//             the m trained for
//   yarn      f_i / factor blended with f_i by a ramp over i; cos and sin times the attention factor
//   llama3    f_i / factor beyond the low wavelength, f_i below the high one, interpolated between
//   proportional  f_i / factor of the first so many angles, 0 of the others
//   longrope  f_i / (the i-th short factor, or long one for more positions than were trained first); cos and
//             sin times sqrt(1 + ln(factor) / ln(those positions))
//
// Tensors are FP32 there, so every product and quotient here is rounded to FP32 where theirs is; powers and
// cos/sin, whose last bit depends on the library, are taken in FP64 and rounded once. A tensor library's own
// last bit differs from that now and then.
#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/checked.h"
#include "base/error.h"

namespace llmq {
namespace {

float power(float base, float exponent) {
  return static_cast<float>(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
}

// theta^(2i/d) for i in [0, d/2)
std::vector<float> wave_powers(float theta, int head_dim) {
  std::vector<float> powers;
  for (int i = 0; i < head_dim; i += 2)
    powers.push_back(power(theta, static_cast<float>(i) / static_cast<float>(head_dim)));
  return powers;
}

// 1.0 / tensor and number / tensor are reciprocal-then-multiply in PyTorch.
float divide_number(double number, float by) { return (1.0f / by) * static_cast<float>(number); }

std::vector<float> plain_frequencies(float theta, int head_dim) {
  std::vector<float> frequencies = wave_powers(theta, head_dim);
  for (float& f : frequencies) f = 1.0f / f;
  return frequencies;
}

float dynamic_theta(const RopeSpec& rope, int head_dim, std::int64_t positions, std::int64_t max_position) {
  if (head_dim <= 2) return static_cast<float>(rope.theta);  // one frequency, 1, whatever theta is
  const double exponent = static_cast<double>(head_dim) / static_cast<double>(head_dim - 2);
  const auto trained = static_cast<double>(max_position);
  if (positions <= max_position) {  // at construction: Python numbers
    const double stretch = rope.factor * trained / trained - (rope.factor - 1);
    return static_cast<float>(rope.theta * std::pow(stretch, exponent));
  }
  // Grown: the length is a tensor, and everything that touches it is FP32.
  const float scaled = static_cast<float>(rope.factor) * static_cast<float>(positions);
  const float stretch = scaled / static_cast<float>(trained) - static_cast<float>(rope.factor - 1);
  return static_cast<float>(rope.theta) * power(stretch, static_cast<float>(exponent));
}

// Which dimension turns `rotations` times over the trained length.
double correction_dimension(double rotations, const RopeSpec& rope, int head_dim) {
  const double length = static_cast<double>(rope.original_max_position);
  return head_dim * std::log(length / (rotations * 2 * M_PI)) / (2 * std::log(rope.theta));
}

std::vector<float> yarn_frequencies(const RopeSpec& rope, int head_dim) {
  double low = correction_dimension(rope.beta_fast, rope, head_dim);
  double high = correction_dimension(rope.beta_slow, rope, head_dim);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;
  std::vector<float> frequencies = wave_powers(static_cast<float>(rope.theta), head_dim);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float ramp = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float extrapolated = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
    const float full = 1.0f / frequencies[i];
    const float stretched = 1.0f / (static_cast<float>(rope.factor) * frequencies[i]);
    frequencies[i] = stretched * (1.0f - extrapolated) + full * extrapolated;
  }
  return frequencies;
}

double yarn_attention_factor(const RopeSpec& rope) {
  if (rope.attention_factor != 0) return rope.attention_factor;
  const auto scale = [&](double mscale) {
    return rope.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(rope.factor) + 1.0;
  };
  if (rope.mscale != 0 && rope.mscale_all_dim != 0) return scale(rope.mscale) / scale(rope.mscale_all_dim);
  return scale(1);
}

std::vector<float> llama3_frequencies(const RopeSpec& rope, int head_dim) {
  const auto length = static_cast<double>(rope.original_max_position);
  const auto low_wavelength = static_cast<float>(length / rope.low_freq_factor);
  const auto high_wavelength = static_cast<float>(length / rope.high_freq_factor);
  const auto factor = static_cast<float>(rope.factor);
  std::vector<float> frequencies = plain_frequencies(static_cast<float>(rope.theta), head_dim);
  for (float& f : frequencies) {
    const float wavelength = divide_number(2 * M_PI, f);
    if (wavelength > low_wavelength) {
      f = f / factor;
    } else if (!(wavelength < high_wavelength)) {
      const auto range = static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
      const float above = divide_number(length, wavelength) - static_cast<float>(rope.low_freq_factor);
      const float smooth = range == 0 ? 0 : above / range;  // one wavelength is between equal factors, if any
      f = (1.0f - smooth) * f / factor + smooth * f;
    }
  }
  return frequencies;
}

std::vector<float> longrope_frequencies(const RopeSpec& rope, std::int64_t positions) {
  const std::vector<double>& factors =
      positions > rope.original_max_position ? rope.long_factors : rope.short_factors;
  std::vector<float> frequencies = wave_powers(static_cast<float>(rope.theta), static_cast<int>(rope.dims));
  for (std::size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] = 1.0f / (static_cast<float>(factors[i]) * frequencies[i]);
  return frequencies;
}

std::vector<float> proportional_frequencies(const RopeSpec& rope) {
  std::vector<float> frequencies =
      plain_frequencies(static_cast<float>(rope.theta), static_cast<int>(rope.dims));
  for (std::size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] =
        static_cast<std::int64_t>(i) < rope.angles ? frequencies[i] / static_cast<float>(rope.factor) : 0;
  return frequencies;
}

double attention_factor(const RopeSpec& rope) {
  if (rope.kind == RopeKind::kYarn) return yarn_attention_factor(rope);
  return rope.kind == RopeKind::kLongRope ? longrope_attention_factor(rope) : 1.0;
}

// 1 exactly where there is none.
float growth_at(const RopeSpec& rope, std::int64_t position) {
  if (rope.growth == 0) return 1;
  const auto lengths = static_cast<float>((position + rope.growth_start) / rope.growth_length);
  const auto logarithm = static_cast<float>(std::log(1 + static_cast<double>(lengths)));
  return 1.0f + static_cast<float>(rope.growth) * logarithm;
}

std::vector<float> inverse_frequencies(const RopeSpec& rope, std::int64_t max_position,
                                       std::int64_t positions) {
  const auto theta = static_cast<float>(rope.theta);
  switch (rope.kind) {
    case RopeKind::kDefault:
      break;
    case RopeKind::kLinear: {
      std::vector<float> frequencies = plain_frequencies(theta, static_cast<int>(rope.dims));
      for (float& f : frequencies) f /= static_cast<float>(rope.factor);
      return frequencies;
    }
    case RopeKind::kDynamic:
      return plain_frequencies(dynamic_theta(rope, static_cast<int>(rope.dims), positions, max_position),
                               static_cast<int>(rope.dims));
    case RopeKind::kYarn:
      return yarn_frequencies(rope, static_cast<int>(rope.dims));
    case RopeKind::kLlama3:
      return llama3_frequencies(rope, static_cast<int>(rope.dims));
    case RopeKind::kLongRope:
      return longrope_frequencies(rope, positions);
    case RopeKind::kProportional:
      return proportional_frequencies(rope);
  }
  return plain_frequencies(theta, static_cast<int>(rope.dims));
}

}  // namespace

double longrope_attention_factor(const RopeSpec& rope) {
  if (rope.attention_factor != 0) return rope.attention_factor;
  if (rope.factor <= 1) return 1;
  return std::sqrt(1 + std::log(rope.factor) / std::log(static_cast<double>(rope.original_max_position)));
}

RopeTable make_rope_table(const RopeSpec& rope, std::int64_t max_position, std::int64_t positions) {
  constexpr std::uint64_t kMostEntries = std::uint64_t{1} << 32;
  const std::vector<float> frequencies = inverse_frequencies(rope, max_position, positions);
  const auto entries =
      checked_mul(static_cast<std::uint64_t>(std::max<std::int64_t>(positions, 0)), frequencies.size());
  if (positions < 1 || !entries || *entries > kMostEntries)
    fail(ErrorKind::kUsage, "a context of {} positions is out of range", positions);
  const auto factor = static_cast<float>(attention_factor(rope));
  RopeTable table;
  table.positions = positions;
  table.cosines.reserve(*entries);
  table.sines.reserve(*entries);
  for (std::int64_t p = 0; p < positions; ++p) {
    const float grown = growth_at(rope, p);
    for (const float f : frequencies) {
      const auto angle = static_cast<double>(static_cast<float>(p) * f);
      table.cosines.push_back(static_cast<float>(std::cos(angle)) * factor * grown);
      table.sines.push_back(static_cast<float>(std::sin(angle)) * factor * grown);
    }
  }
  return table;
}

}  // namespace llmq
