// ggml's choice, from one list of steps for all types:
//
//   blocks of 32, no importance   the largest number, or the extremes, set the scale; every number is rounded
//                                 once
//   blocks of 32, importance      weights imp * sqrt(mean square of the row + x^2), one search, its codes
//   blocks of a table             weights; a search in each sub-block; the scales of IQ4_XS become integers
//                                 around the unit that gives the largest -32; every number is rounded to a
//                                 value, with the scales before they are rounded to F16
//   K-blocks                      weights; a search in each sub-block; the scales found there become
//                                 integers; every number is rounded once more with the scales as they are
//                                 stored
//
// Every float operation stands in ggml's order.
#include "tensor/ggml_choice.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <span>

#include "tensor/ggml_search.h"
#include "tensor/ggml_table.h"

namespace llmq {
namespace {

constexpr AffineCandidates kImportanceCandidates{-0.9f, 0.05f, 37};

std::uint8_t truncated(float value, int top) {
  return std::isfinite(value) ? static_cast<std::uint8_t>(std::min(top, static_cast<int>(value)))
                              : std::uint8_t{0};
}

float inverse(float d) { return d != 0 ? 1.f / d : 0.f; }

float of_largest_magnitude(std::span<const float> values) {
  float extreme = 0;
  for (const float value : values)
    if (std::fabs(value) > std::fabs(extreme)) extreme = value;
  return extreme;
}

// ---- blocks of 32 without importance

BlockFields by_largest(const BlockLayout& layout, const float* x) {
  const auto zero = static_cast<float>(layout.zero);
  const float d = of_largest_magnitude({x, 32}) / -zero, id = inverse(d);
  BlockFields fields{to_float16(d)};
  for (std::size_t i = 0; i < 32; ++i) fields.q[i] = truncated(x[i] * id + (zero + 0.5f), layout.top());
  return fields;
}

BlockFields by_range(const BlockLayout& layout, const float* x) {
  float lowest = FLT_MAX, highest = -FLT_MAX;
  for (int i = 0; i < 32; ++i) {
    lowest = std::min(lowest, x[i]);
    highest = std::max(highest, x[i]);
  }
  const float d = (highest - lowest) / static_cast<float>(layout.top()), id = inverse(d);
  BlockFields fields{to_float16(d), to_float16(lowest)};
  for (std::size_t i = 0; i < 32; ++i) fields.q[i] = truncated((x[i] - lowest) * id + 0.5f, layout.top());
  return fields;
}

// Q8_0, with importance or without.
BlockFields by_magnitude(const BlockLayout& layout, const float* x) {
  const float d = std::fabs(of_largest_magnitude({x, 32})) / 127, id = inverse(d);
  BlockFields fields{to_float16(d)};
  for (std::size_t i = 0; i < 32; ++i) {
    const float rounded = std::round(x[i] * id);
    fields.q[i] =
        static_cast<std::uint8_t>(layout.zero + (std::isfinite(rounded) ? static_cast<int>(rounded) : 0));
  }
  return fields;
}

// ---- with weights

// w_i = imp_i sqrt(sigma2 + x_i^2)
void weigh(const float* importance, float sigma2, std::span<const float> x, float* weight) {
  for (std::size_t i = 0; i < x.size(); ++i) weight[i] = importance[i] * std::sqrt(sigma2 + x[i] * x[i]);
}

BlockFields by_symmetric_search(const BlockLayout& layout, const BlockInput& input) {
  std::array<float, 32> weight;
  weigh(input.importance, input.mean_square, {input.x, 32}, weight.data());
  BlockFields fields;
  fields.d = to_float16(search_symmetric({input.x, weight.data(), 32}, layout.zero, fields.q.data()));
  return fields;
}

void by_affine_search(const BlockLayout& layout, const BlockInput& first, int count, BlockFields* fields) {
  static_assert(kBlocksAtOnce == kAffineRuns);
  std::array<float, std::size_t{32} * kAffineRuns> x{}, weight{};  // runs beyond `count` are zeros
  const std::size_t size = 32 * static_cast<std::size_t>(count);
  std::copy_n(first.x, size, x.begin());
  weigh(first.importance, first.mean_square, {first.x, size}, weight.data());
  std::array<AffineFit, kAffineRuns> fits;
  std::array<std::uint8_t, std::size_t{32} * kAffineRuns> q;
  search_affine({x.data(), weight.data(), 32}, layout.top(), kImportanceCandidates, fits.data(), q.data());
  for (std::size_t k = 0; k < static_cast<std::size_t>(count); ++k) {
    fields[k].d = to_float16(fits[k].scale);
    fields[k].m = to_float16(-fits[k].minimum);
    std::copy_n(q.data() + 32 * k, 32, fields[k].q.data());
  }
}

// ---- K-blocks

float sum_of_squares(std::span<const float> x) {
  float sum = 0;
  for (const float v : x) sum += v * v;
  return sum;
}

// The weights of a block's 256 numbers.
void weigh_block(const BlockLayout& layout, const BlockInput& input, std::array<float, 256>& weight) {
  const std::span<const float> x(input.x, 256);
  if (input.importance != nullptr) {
    if (layout.dtype == DType::kQ6_K) {
      std::copy_n(input.importance, 256, weight.begin());
    } else {
      const float sum = sum_of_squares(x), twice = layout.dtype == DType::kQ2_K ? sum : 2 * sum;
      weigh(input.importance, twice / 256, x, weight.data());
    }
  } else if (!layout.has_minimum()) {
    for (std::size_t i = 0; i < 256; ++i) weight[i] = x[i] * x[i];
  } else if (layout.dtype == DType::kQ2_K) {
    for (std::size_t i = 0; i < 256; ++i) weight[i] = std::fabs(x[i]);
  } else {
    for (std::size_t first = 0; first < 256; first += 32) {
      const float root = std::sqrt(sum_of_squares(x.subspan(first, 32)) / 32);
      for (std::size_t i = first; i < first + 32; ++i) weight[i] = root + std::fabs(x[i]);
    }
  }
}

AffineCandidates candidates(DType dtype, bool importance) {
  if (importance) return kImportanceCandidates;
  if (dtype == DType::kQ2_K) return {-0.5f, 0.1f, 16, true};
  if (dtype == DType::kQ4_K) return {-1.f, 0.1f, 21};
  return {-0.5f, 0.1f, 16};
}

// Scales (and minima) as the searches found them, one a sub-block, and the sum of the weights there.
struct SubBlockScales {
  std::array<float, 16> scale{}, minimum{}, weight{};
};

SubBlockScales search_sub_blocks(const BlockLayout& layout, const BlockInput& input, BlockFields& fields) {
  std::array<float, 256> weight;
  weigh_block(layout, input, weight);
  const bool importance = input.importance != nullptr;
  SubBlockScales found;
  const auto run = [&](int j) {
    const int first = j * layout.sub_block;
    return WeightedRun{input.x + first, weight.data() + first, layout.sub_block};
  };
  const auto codes = [&](int j) {
    const int first = j * layout.sub_block;
    return fields.q.data() + first;
  };
  for (int j = 0; j < layout.sub_blocks(); ++j)
    for (int i = 0; i < layout.sub_block; ++i) found.weight[static_cast<std::size_t>(j)] += run(j).weight[i];
  if (layout.has_minimum()) {
    std::array<AffineFit, 16> fits;
    for (int j = 0; j < layout.sub_blocks(); j += kAffineRuns)
      search_affine(run(j), layout.top(), candidates(layout.dtype, importance), fits.data() + j, codes(j));
    for (std::size_t j = 0; j < static_cast<std::size_t>(layout.sub_blocks()); ++j) {
      found.scale[j] = fits[j].scale;
      found.minimum[j] = fits[j].minimum;
    }
    return found;
  }
  const auto search = layout.dtype == DType::kQ3_K && !importance ? sweep_symmetric : search_symmetric;
  for (int j = 0; j < layout.sub_blocks(); ++j)
    found.scale[static_cast<std::size_t>(j)] = search(run(j), layout.zero, codes(j));
  return found;
}

using Scales = std::span<const float>;

// Integers 0 ... top for scales that are none of them negative; the largest gets `top`. Returns the unit.
float positive_integers(Scales scales, int top, int* integers) {
  const float extreme = std::max(0.f, *std::max_element(scales.begin(), scales.end()));
  const auto high = static_cast<float>(top);
  const float inv = extreme > 0 ? high / extreme : 0.f;
  for (std::size_t j = 0; j < scales.size(); ++j)
    integers[j] = std::min<int>(top, static_cast<std::uint8_t>(nearest_int(inv * scales[j])));
  return extreme / high;
}

// Integers low ... -low - 1; the scale of largest magnitude gets `low`.
float signed_integers(Scales scales, int low, int* integers) {
  const float extreme = of_largest_magnitude(scales);
  if (extreme == 0) {
    std::fill_n(integers, scales.size(), low);
    return 0;
  }
  const float inv = static_cast<float>(low) / extreme;
  for (std::size_t j = 0; j < scales.size(); ++j)
    integers[j] = std::clamp(nearest_int(inv * scales[j]), low, -low - 1);
  return 1 / inv;
}

// By search, for the weights of the sub-blocks.
float searched_integers(Scales scales, Scales weights, int low, int top, int* integers) {
  std::array<std::uint8_t, 16> codes{};
  const WeightedRun run{scales.data(), weights.data(), static_cast<int>(scales.size())};
  const float unit =
      low < 0 ? search_symmetric(run, -low, codes.data()) : search_positive(run, top, codes.data());
  for (std::size_t j = 0; j < scales.size(); ++j) integers[j] = codes[j] + low;
  return unit;
}

void round_once_more(const BlockLayout& layout, const float* x, BlockFields& fields) {
  const float d = to_float(fields.d), m = to_float(fields.m);
  for (int j = 0; j < layout.sub_blocks(); ++j) {
    const auto sub = static_cast<std::size_t>(j);
    const float scale = d * static_cast<float>(fields.s[sub]);
    if (scale == 0) continue;  // the codes of the search stay
    const float minimum = m * static_cast<float>(fields.t[sub]);
    for (int i = j * layout.sub_block; i < (j + 1) * layout.sub_block; ++i)
      fields.q[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(
          std::clamp(nearest_int((x[i] + minimum) / scale), -layout.zero, layout.top() - layout.zero) +
          layout.zero);
  }
}

BlockFields k_block(const BlockLayout& layout, const BlockInput& input) {
  BlockFields fields;
  const SubBlockScales found = search_sub_blocks(layout, input, fields);
  const auto count = static_cast<std::size_t>(layout.sub_blocks());
  const Scales scales(found.scale.data(), count), minima(found.minimum.data(), count),
      weights(found.weight.data(), count);
  const bool search = input.importance != nullptr && layout.dtype != DType::kQ6_K;
  float d = 0;
  if (search) {
    d = searched_integers(scales, weights, layout.scale_low, layout.scale_high, fields.s.data());
  } else if (layout.has_minimum()) {
    d = positive_integers(scales, layout.scale_high, fields.s.data());
  } else {
    if (layout.dtype == DType::kQ6_K && std::fabs(of_largest_magnitude(scales)) < kNoNumbers) return {};
    d = signed_integers(scales, layout.scale_low, fields.s.data());
  }
  fields.d = to_float16(d);
  if (layout.has_minimum()) {
    fields.m = to_float16(search ? searched_integers(minima, weights, 0, layout.scale_high, fields.t.data())
                                 : positive_integers(minima, layout.scale_high, fields.t.data()));
  }
  round_once_more(layout, input.x, fields);
  return fields;
}

// ---- blocks of a table

BlockFields table_block(const BlockLayout& layout, const BlockInput& input) {
  const auto size = static_cast<std::size_t>(layout.elements), count = size / 32;
  std::array<float, 256> weight;
  const std::span<const float> x(input.x, size);
  if (input.importance != nullptr) {
    weigh(input.importance, sum_of_squares(x) * (2.f / static_cast<float>(size)), x, weight.data());
  } else {
    for (std::size_t i = 0; i < size; ++i) weight[i] = x[i] * x[i];
  }
  std::array<float, 8> scales{};
  for (std::size_t j = 0; j < count; ++j) scales[j] = search_table(input.x + 32 * j, weight.data() + 32 * j);
  BlockFields fields;
  fields.s[0] = 1;
  float d = scales[0];
  if (layout.scale_codes != ScaleCodes::kNone) {
    d = -of_largest_magnitude(scales) / 32;
    for (std::size_t j = 0; j < count; ++j)
      fields.s[j] = std::clamp(nearest_int(inverse(d) * scales[j]), layout.scale_low, layout.scale_high);
  }
  fields.d = to_float16(d);
  for (std::size_t j = 0; j < count; ++j) {
    const float id = inverse(d * static_cast<float>(fields.s[j]));
    for (std::size_t i = 32 * j; i < 32 * (j + 1); ++i) fields.q[i] = table_code(id * x[i]);
  }
  return fields;
}

}  // namespace

void choose_as_ggml(const BlockLayout& layout, const BlockInput& first, int count, BlockFields* fields) {
  const bool importance = first.importance != nullptr && layout.dtype != DType::kQ8_0;
  if (importance && layout.elements == 32 && layout.has_minimum())
    return by_affine_search(layout, first, count, fields);
  for (int k = 0; k < count; ++k) {
    const int before = k * layout.elements;
    const float* const x = first.x + before;
    const BlockInput input{x, importance ? first.importance + before : nullptr, first.mean_square};
    if (layout.values != nullptr) {
      fields[k] = table_block(layout, input);
    } else if (layout.elements == 256) {
      fields[k] = k_block(layout, input);
    } else if (importance) {
      fields[k] = by_symmetric_search(layout, input);
    } else if (layout.dtype == DType::kQ8_0) {
      fields[k] = by_magnitude(layout, x);
    } else {
      fields[k] = layout.has_minimum() ? by_range(layout, x) : by_largest(layout, x);
    }
  }
}

}  // namespace llmq
