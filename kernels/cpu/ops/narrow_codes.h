// What the bytes of a weight in few bits mean (NarrowLayout), and how they become numbers.
//
// A panel of P columns, bytes in order:
//   factors, if any: for every `together` groups P FP16 numbers d, with minima P more, m
//   each group:
//     scales     P numbers, or bytes: signed s with scale = d s; kNibbles: s below, t above
//     minima     if any, P numbers or bytes: unsigned t with minimum = m t
//     zeros      if any, P bytes (8-bit codes: signed, less 128)
//     codes      units of `narrow_unit` codes along the depth, as P words of 32 bits behind P words; of a
//                word the low half has even codes, the high half the odd ones beside them, so that a shift
//                brings a pair under the two halves of a lane. Pair j of a unit:
//       2 bits   bits 2 j of word 0
//       3 bits   bits 2 j of word 0 and bit j of a byte each behind it (P pairs of bytes)
//       4 bits   bits 4 j of word 0; in quads, byte i of the word has code i below and code 4 + i above
//       5 bits   bits 5 (j % 3) of word j / 3; pair 15: bit 15 of words 0 to 4, lowest first
//       6 bits   bits 6 (j % 2) of word j / 2; pairs 6 and 7: bits 12 to 15 of words 0 and 2, above them bits
//                12, 13 and 14, 15 of word 1
//       8 bits   per code P signed bytes: code less zero without zeros, code less 128 with them
// Without zeros the zero is the middle, half as many codes as there are; codes of a book lie as they are, and
// so do those with a minimum, where what follows their sums makes up for the middle (cpu_kernels.h).
#pragma once
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/ops/gemm.h"

namespace llmq {

// What is made of a stored code: less the middle, less a zero of its group, looked up in the layout's book.
enum class CodeForm { kMiddle, kZeros, kBook };

// Which scales and minima stand beside which codes: no others are written (device/cpu/narrow_panel.cpp), and
// none are looked for.
constexpr bool has_float_scales(CodeForm form) { return form == CodeForm::kBook; }  // levels, exponents
constexpr bool may_have_factors(CodeForm form) { return form != CodeForm::kZeros; }
constexpr bool may_have_minima(CodeForm form) { return form == CodeForm::kMiddle; }

// What `number` takes off codes without zeros, which with minima is given back.
constexpr int narrow_middle(int bits) { return bits == 8 ? 0 : 1 << (bits - 1); }

// Pair J of a unit as indexes, by what shifts and joins words: Ops::part<Shift, Mask>(word), the bits of a
// word that Mask has; Ops::clear<Shift, Bits>, where no others may be above them; words(i) is word i.
template <int Bits, int J, class Ops, class Words>
LLMQ_INLINE auto narrow_index(const Words& words) {
  if constexpr (Bits == 2) {
    return Ops::template whole<2 * J, 2>(words(0));
  } else if constexpr (Bits == 3) {
    return Ops::template with_third_bit<J>(words(0), words(1));
  } else if constexpr (Bits == 5) {
    if constexpr (J < 15)
      return Ops::template whole<5 * (J % 3), 5>(words(J / 3));
    else
      return Ops::join(
          Ops::join(Ops::join(Ops::template part<15, 1>(words(0)), Ops::template part<14, 2>(words(1))),
                    Ops::join(Ops::template part<13, 4>(words(2)), Ops::template part<12, 8>(words(3)))),
          Ops::template part<11, 16>(words(4)));
  } else {
    static_assert(Bits == 6);
    if constexpr (J < 6)
      return Ops::template whole<6 * (J % 2), 6>(words(J / 2));
    else if constexpr (J == 6)
      return Ops::join(Ops::template part<12, 15>(words(0)), Ops::template part<8, 48>(words(1)));
    else
      return Ops::join(Ops::template part<12, 15>(words(2)), Ops::template part<10, 48>(words(1)));
  }
}

// The words of a unit of V::kLanes columns; 3 bits: word 1 is the pairs of bytes.
template <class V, int Bits>
struct NarrowWords {
  const unsigned char* unit;
  int64_t n;
  LLMQ_INLINE typename V::I operator()(int i) const {
    constexpr int64_t kRow = V::kPanelVectors * V::kLanes * 4;
    if (Bits == 3 && i == 1) return V::byte_pairs(unit + kRow + 2 * n);
    return V::loadi(unit + i * kRow + 4 * n);
  }
};

// Codes as pairs of FP32 numbers, for products without a BF16 instruction (ProductBF16); Exact: for float32
// compute, whose books are not rounded.
template <class V, bool Exact = false>
struct WideCodes {
  using B = typename ProductBF16<V>::B;
  using Zero = typename V::I;
  static LLMQ_INLINE auto book(const CodeBook& book) { return V::book(Exact ? book.values : book.nearest); }
  template <int Bits>
  static LLMQ_INLINE Zero middle() {
    return V::seti(narrow_middle(Bits));
  }
  static LLMQ_INLINE Zero zero4(const unsigned char* at) { return V::load_u8(at); }
  static LLMQ_INLINE Zero zero8(const unsigned char* at) { return V::load_i8(at); }
  template <CodeForm Form, class From>
  static LLMQ_INLINE void expand4(B (&out)[4], const unsigned char* at, From zero) {
    const auto words = V::loadi(at);
    unroll<4>([&](auto j) LLMQ_LAMBDA_INLINE {
      constexpr int kShift = 4 * decltype(j)::value;
      if constexpr (Form == CodeForm::kBook)
        out[decltype(j)::value] = {V::template look_up<kShift>(zero, words),
                                   V::template look_up<kShift + 16>(zero, words)};
      else
        out[decltype(j)::value] = {V::to_f32(V::subi(V::template field<kShift, 15>(words), zero)),
                                   V::to_f32(V::subi(V::template field<kShift + 16, 15>(words), zero))};
    });
  }
  template <CodeForm>
  static LLMQ_INLINE B pair8(const unsigned char* even, const unsigned char* odd, Zero zero) {
    return {V::to_f32(V::subi(V::load_i8(even), zero)), V::to_f32(V::subi(V::load_i8(odd), zero))};
  }
  template <int Bits, int J>
  static LLMQ_INLINE B pair(const NarrowWords<V, Bits>& words, Zero zero) {
    return {V::to_f32(V::subi(narrow_index<Bits, J, Half<0>>(words), zero)),
            V::to_f32(V::subi(narrow_index<Bits, J, Half<16>>(words), zero))};
  }
  static LLMQ_INLINE void store(unsigned char* p, B pair) { V::storei(p, V::pair_bits(pair.even, pair.odd)); }

 private:
  template <int From>
  struct Half {
    using I = typename V::I;
    template <int Shift, int Bits>
    static LLMQ_INLINE I whole(I word) {
      return V::template field<Shift + From, (1 << Bits) - 1>(word);
    }
    template <int Shift, int Mask>
    static LLMQ_INLINE I part(I word) {
      return V::template field<Shift + From, Mask>(word);
    }
    template <int J>
    static LLMQ_INLINE I with_third_bit(I low, I high) {
      return V::ori(V::template field<2 * J + From, 3>(low),
                    V::template field<J + From, 4>(V::template left<2>(high)));
    }
    static LLMQ_INLINE I join(I a, I b) { return V::ori(a, b); }
  };
};

template <class Codes, int Bits, CodeForm Form>
LLMQ_INLINE auto narrow_zero(const NarrowLayout& layout, const unsigned char* zeros, int64_t n) {
  if constexpr (Form == CodeForm::kBook)
    return Codes::book(*layout.book);
  else if constexpr (Form == CodeForm::kMiddle)
    return Codes::template middle<Bits>();
  else if constexpr (Bits == 4)
    return Codes::zero4(zeros + n);
  else
    return Codes::zero8(zeros + n);
}
template <class Codes, int Bits, CodeForm Form>
using NarrowZero = decltype(narrow_zero<Codes, Bits, Form>(NarrowLayout(), nullptr, 0));

// The four pairs of block `Block` of a unit, of V::kLanes columns from column n on.
template <class V, class Codes, int Bits, CodeForm Form, int Block>
LLMQ_INLINE void narrow_pairs(typename Codes::B (&pairs)[4], const unsigned char* unit, int64_t n,
                              NarrowZero<Codes, Bits, Form> zero) {
  constexpr int64_t kPanel = V::kPanelVectors * V::kLanes;
  if constexpr (Bits == 4) {
    Codes::template expand4<Form>(pairs, unit + 4 * n, zero);
  } else if constexpr (Bits == 8) {
    unroll<4>([&](auto j) LLMQ_LAMBDA_INLINE {
      const unsigned char* const even = unit + 2 * decltype(j)::value * kPanel + n;
      pairs[decltype(j)::value] = Codes::template pair8<Form>(even, even + kPanel, zero);
    });
  } else {
    const NarrowWords<V, Bits> words{unit, n};
    unroll<4>([&](auto j) LLMQ_LAMBDA_INLINE {
      constexpr int kJ = decltype(j)::value;
      pairs[kJ] = Codes::template pair<Bits, 4 * Block + kJ>(words, zero);
    });
  }
}

// What follows the sums of V::kLanes columns of a group.
template <class V>
LLMQ_INLINE typename V::F narrow_number(const unsigned char* numbers, ScaleFormat format, int64_t n) {
  if (format == ScaleFormat::kBF16) return V::load_bf16(reinterpret_cast<const BFloat16*>(numbers + 2 * n));
  if (format == ScaleFormat::kF16) return V::load_f16(numbers + 2 * n);
  return V::load(reinterpret_cast<const float*>(numbers + 4 * n));
}

// E4M3 without a sign, less 2^120: with its bits where FP32 has its own, denormals among them.
template <class V>
LLMQ_INLINE typename V::F narrow_level(const unsigned char* at) {
  return V::from_bits(V::template left<20>(V::load_u8(at)));
}

// The FP16 numbers of a group's block, 0 where the layout has none.
template <class V>
struct NarrowFactors {
  typename V::F scale, minimum;
};
template <class V>
LLMQ_INLINE NarrowFactors<V> narrow_factors(const NarrowGroup& group, int64_t n) {
  constexpr int64_t kPanel = V::kPanelVectors * V::kLanes;
  const auto none = V::set(0.0f);
  if (!group.layout->has_factors()) return {none, none};
  return {V::load_f16(group.factors + 2 * n),
          group.layout->minima ? V::load_f16(group.factors + 2 * (kPanel + n)) : none};
}

template <class V, CodeForm Form>
LLMQ_INLINE typename V::F narrow_scale(const NarrowGroup& group, const NarrowFactors<V>& factors, int64_t n) {
  const ScaleFormat format = group.layout->scales;
  if constexpr (has_float_scales(Form)) {
    if (format == ScaleFormat::kLevels)
      return V::mul(narrow_level<V>(group.at + n), V::set(group.layout->level_unit));
    if (format == ScaleFormat::kExponents)  // 2^-127 is no normal number
      return V::from_bits(V::maxi(V::template left<23>(V::load_u8(group.at + n)), V::seti(1 << 22)));
  }
  if constexpr (may_have_factors(Form))
    if (format == ScaleFormat::kFactors) return V::mul(factors.scale, V::to_f32(V::load_i8(group.at + n)));
  if constexpr (may_have_minima(Form))
    if (format == ScaleFormat::kNibbles)
      return V::mul(factors.scale, V::to_f32(V::template field<0, 15>(V::load_u8(group.at + n))));
  return narrow_number<V>(group.at, format, n);
}

template <class V, CodeForm Form>
LLMQ_INLINE typename V::F narrow_scale(const NarrowGroup& group, int64_t n) {
  return narrow_scale<V, Form>(group, narrow_factors<V>(group, n), n);
}

// Of float32 compute.
template <class V, CodeForm Form>
LLMQ_INLINE typename V::F narrow_exact_scale(const NarrowGroup& group, int64_t n) {
  const NarrowLayout& layout = *group.layout;
  if (!has_float_scales(Form) || layout.scales != ScaleFormat::kLevels)
    return narrow_scale<V, Form>(group, n);
  const auto level = V::mul(narrow_level<V>(group.at + n), V::set(0x1p120f)), global = V::set(layout.global);
  return layout.divides ? V::div(level, global) : V::mul(level, global);
}

template <class V>
LLMQ_INLINE typename V::F narrow_rounded(typename V::F value, ScaleFormat format) {
  BFloat16 halves[V::kLanes];
  if (format == ScaleFormat::kF32) return value;
  if (format == ScaleFormat::kBF16) {
    V::store_bf16(halves, value);
    return V::load_bf16(halves);
  }
  V::store_f16(halves, value);
  return V::load_f16(halves);
}

template <class V>
LLMQ_INLINE typename V::F narrow_minimum(const NarrowGroup& group, const NarrowFactors<V>& factors,
                                         int64_t n) {
  constexpr int64_t kPanel = V::kPanelVectors * V::kLanes;
  const ScaleFormat format = group.layout->scales;
  if (format == ScaleFormat::kFactors)
    return V::mul(factors.minimum, V::to_f32(V::load_u8(group.at + kPanel + n)));
  if (format == ScaleFormat::kNibbles)
    return V::mul(factors.minimum, V::to_f32(V::template field<4, 15>(V::load_u8(group.at + n))));
  return narrow_number<V>(group.at + kPanel * group.layout->scale_bytes(), format, n);
}

// What the sum of a row's group is multiplied with, given its scale.
template <class V>
LLMQ_INLINE typename V::F narrow_offset(const NarrowGroup& group, const NarrowFactors<V>& factors,
                                        typename V::F scale, int64_t n) {
  const auto middle = V::set(static_cast<float>(narrow_middle(group.layout->bits)));
  return V::sub(V::mul(middle, scale), narrow_minimum<V>(group, factors, n));
}

}  // namespace llmq
