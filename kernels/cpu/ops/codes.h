// Products of 8-bit codes: rows rounded to INT8 or E4M3, INT8 products with INT32 sums, the scales that
// follow (src/device/low_precision.h says the arithmetic and its order).
//
// Integer sums are exact and every other step is one IEEE operation per element in a fixed order, so INT8
// results are the same bits at every level. Plain loops stand where the compiler's vectors do.
#pragma once
#include "kernels/cpu/ops/gemm.h"
#include "kernels/cpu/ops/rounding.h"

namespace llmq {

// max|x| / top, `least` where all are 0, NaN where any is not finite.
template <class V, class From>
float row_scale(const void* x, int64_t n, float top, float least) {
  const From* const from = static_cast<const From*>(x);
  auto greatest = V::set(0.0f), poison = V::set(0.0f);
  by_lanes<V>(n, [&](int64_t i, auto count) LLMQ_LAMBDA_INLINE {
    const auto v = read<V>(from + i, count);
    greatest = V::max(greatest, V::max(v, V::sub(V::set(0.0f), v)));
    poison = V::add(poison, V::sub(v, v));
  });
  const float scale = V::greatest(greatest) / top;
  return (scale == 0.0f ? least : scale) + V::sum(poison);
}

template <class V, int N>
LLMQ_INLINE void write_codes(int8_t* p, typename V::F v, Index<N>) {
  V::store_int8(p, v);
}
template <class V>
LLMQ_INLINE void write_codes(int8_t* p, typename V::F v, int n) {
  int8_t padded[V::kLanes];
  V::store_int8(padded, v);
  for (int i = 0; i < n; ++i) p[i] = padded[i];
}

// codes[k] = round(clamp(x[k] / scale, -128, 127)), ties to even; their sum, which FP32 holds exactly for
// kExact of them.
template <class V, class From>
int32_t round_int8(int8_t* codes, const void* x, float scale, int64_t n) {
  constexpr int64_t kExact = 1 << 16;
  const From* const from = static_cast<const From*>(x);
  int32_t sum = 0;
  for (int64_t first = 0; first < n; first += kExact) {
    auto total = V::set(0.0f);
    by_lanes<V>(n - first < kExact ? n - first : kExact, [&](int64_t i, auto count) LLMQ_LAMBDA_INLINE {
      const auto v = V::div(read<V>(from + first + i, count), V::set(scale));
      // The constant second: a NaN becomes -128.
      const auto code = nearest<V>(V::min(V::max(v, V::set(-128.0f)), V::set(127.0f)));
      write_codes<V>(codes + first + i, code, count);
      total = V::add(total, code);  // 0 in the lanes beyond the end
    });
    sum += static_cast<int32_t>(V::sum(total));
  }
  return sum;
}

// values[k] = E4M3 nearest to clamp(x[k] / scale, -448, 448), as BF16, which holds every E4M3.
template <class V, class From>
void round_float8(BFloat16* values, const void* x, float scale, int64_t n) {
  const From* const from = static_cast<const From*>(x);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = bits_from_float(as_float(from[i]) / scale);
    const uint32_t sign = bits & 0x80000000u, wide = bits & 0x7fffffffu;
    const uint32_t magnitude = wide < bits_from_float(kFloat8Top) ? wide : bits_from_float(kFloat8Top);
    // Four significant bits; below 2^-6 units of 2^-9, which adding 2^14 leaves as the last bit.
    const uint32_t normal = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) & 0xfff00000u;
    const uint32_t small = bits_from_float((float_from_bits(magnitude) + 16384.0f) - 16384.0f);
    const uint32_t rounded = magnitude < 0x3c800000u ? small : normal;
    values[i].bits = static_cast<uint16_t>((sign | rounded) >> 16);
  }
}

// One row: y = term(n) * scale (the first group) or fma(term(n), scale, y); the last group's sum is then
// multiplied by the row's factor, and the bias added, before it is stored.
template <class Term>
LLMQ_INLINE void add_row(const ScaledSums& p, int64_t r, const Term& term) {
  float* const __restrict y = p.y + r * p.y_row;
  const float* const __restrict scales = p.scales;
  const auto each = [&](const auto& finish) LLMQ_LAMBDA_INLINE {
    if (p.first)
      for (int64_t n = 0; n < p.columns; ++n) y[n] = finish(term(n) * scales[n], n);
    else
      for (int64_t n = 0; n < p.columns; ++n) y[n] = finish(__builtin_fmaf(term(n), scales[n], y[n]), n);
  };
  if (p.factors == nullptr) return each([](float v, int64_t) LLMQ_LAMBDA_INLINE { return v; });
  const float factor = p.factors[r * p.factor_step];
  if (p.bias == nullptr) return each([&](float v, int64_t) LLMQ_LAMBDA_INLINE { return v * factor; });
  const float* const __restrict bias = p.bias;
  each([&](float v, int64_t n) LLMQ_LAMBDA_INLINE { return __builtin_fmaf(v, factor, bias[n]); });
}

// term = float(sum - zero * codes of the row)
template <class V>
void add_int8_sums(const ScaledSums& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    const int32_t* const __restrict sums = static_cast<const int32_t*>(p.sums) + r * p.sums_row;
    const int32_t* const __restrict zeros = p.zeros;
    const uint32_t codes = static_cast<uint32_t>(p.code_sums[r * p.row_step]);
    add_row(p, r, [&](int64_t n) LLMQ_LAMBDA_INLINE {
      const uint32_t zero = static_cast<uint32_t>(zeros[n]);
      return static_cast<float>(static_cast<int32_t>(static_cast<uint32_t>(sums[n]) - zero * codes));
    });
  }
}

// term = sum * the row's scale: FP32 sums of E4M3 products; with group scales of the row, these come first.
template <class V>
void add_float8_sums(const ScaledSums& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    const float* const __restrict sums = static_cast<const float*>(p.sums) + r * p.sums_row;
    const float row = p.row_scales == nullptr ? 1.0f : p.row_scales[r * p.row_step];
    add_row(p, r, [&](int64_t n) LLMQ_LAMBDA_INLINE { return sums[n] * row; });
  }
}

// INT8 without an instruction for it: bytes widened to pairs of INT16, whose products and pair sums are
// exact.
template <class V>
struct ProductInt8 {
  static constexpr int kPerUnit = 4;
  static constexpr bool kOneInstruction = false;
  struct B {
    typename V::I even, odd;
  };
  static LLMQ_INLINE B load(const unsigned char* at) { return {V::even_bytes(at), V::odd_bytes(at)}; }
  static LLMQ_INLINE B broadcast(uint32_t unit) { return {V::set_even_bytes(unit), V::set_odd_bytes(unit)}; }
  static LLMQ_INLINE typename V::I add(typename V::I acc, B a, B b) {
    return V::addi(acc, V::addi(V::pair_products(a.even, b.even), V::pair_products(a.odd, b.odd)));
  }
  // Codes below 16, whose sums over kNibbleWords words of 8 an INT16 holds: a half takes 4 products of each,
  // 4 * 4 * 15 * 128 = 30720.
  static constexpr int64_t kNibbleWords = 4;
  using Nibbles = typename V::Halves;
  static LLMQ_INLINE Nibbles add_nibbles(Nibbles part, typename V::I input, typename V::I codes) {
    return static_cast<Nibbles>(part + V::byte_products(codes, input));
  }
  static LLMQ_INLINE typename V::I whole(Nibbles part) { return V::sum_of_halves(part); }
};

// V with accumulators of INT32, for gemm.
template <class V>
struct Int32Sums {
  static constexpr int kLanes = V::kLanes, kPanelVectors = V::kPanelVectors, kRowTile = V::kRowTile;
  using F = typename V::I;
  using I = typename V::I;
  static LLMQ_INLINE F set(float) { return V::zeroi(); }  // gemm sets nothing but 0
  static LLMQ_INLINE F load(const float* p) { return V::loadi(p); }
  static LLMQ_INLINE void store(float* p, F v) { V::storei(p, v); }
  static LLMQ_INLINE F load_first(const float* p, int n) { return V::loadi_first(p, n); }
  static LLMQ_INLINE void store_first(float* p, F v, int n) { V::storei_first(p, v, n); }
};

}  // namespace llmq
