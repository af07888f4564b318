// Products with a weight that stays in 4 or 8 bits: the codes become exact BF16 integers on the way into the
// multiplier, and a group's sum meets its scale once.
//
//   S_g = sum over the group of a[k] (code[k] - zero), a chain over pairs of k as `gemm` has it, from 0 on
//   y   = start; for g in order: y = fma(S_g, scale_g, y)
//
// A group of a panel of P columns, bytes in order:
//   scales: P numbers of NarrowLayout::scales      zeros, if any: P bytes (8-bit codes: signed, less 128)
//   4 bits: per 8 codes of each column P words of 32 bits; nibble j of the low half is code 2 j, of the high half
//           code 2 j + 1, so that a shift brings a pair under the two halves of a lane. Without zeros the zero is 8.
//   8 bits: per code of each column P signed bytes: code less zero without zeros, code less 128 with them.
//
// One row: the words are read once, 3 to 4 instructions per 32 of them, and several groups of a panel are in flight
// at once, since a chain of one panel alone would wait for its own additions.
#pragma once
#include "kernels/cpu/ops/gemm.h"

namespace llmq {

// Codes as pairs of FP32 numbers, for products without a BF16 instruction (ProductBF16).
template <class V>
struct WideCodes {
  using B = typename ProductBF16<V>::B;
  using Zero = typename V::I;
  static LLMQ_INLINE Zero middle4() { return V::seti(8); }
  static LLMQ_INLINE Zero zero4(const unsigned char* at) { return V::load_u8(at); }
  static LLMQ_INLINE Zero middle8() { return V::zeroi(); }
  static LLMQ_INLINE Zero zero8(const unsigned char* at) { return V::load_i8(at); }
  template <int Shift>
  static LLMQ_INLINE typename V::F number(typename V::I words, Zero zero) {
    return V::to_f32(V::subi(V::template nibble<Shift>(words), zero));
  }
  template <bool HasZeros>
  static LLMQ_INLINE void expand4(B (&out)[4], const unsigned char* at, Zero zero) {
    const auto words = V::loadi(at);
    unroll<4>([&](auto j) LLMQ_LAMBDA_INLINE {
      constexpr int kShift = 4 * decltype(j)::value;
      out[decltype(j)::value] = {number<kShift>(words, zero), number<kShift + 16>(words, zero)};
    });
  }
  template <bool HasZeros>
  static LLMQ_INLINE B pair8(const unsigned char* even, const unsigned char* odd, Zero zero) {
    return {V::to_f32(V::subi(V::load_i8(even), zero)), V::to_f32(V::subi(V::load_i8(odd), zero))};
  }
  static LLMQ_INLINE void store(unsigned char* p, B pair) { V::storei(p, V::pair_bits(pair.even, pair.odd)); }
};

template <class V>
LLMQ_INLINE typename V::F narrow_scale(const unsigned char* scales, ScaleFormat format, int64_t n) {
  if (format == ScaleFormat::kBF16) return V::load_bf16(reinterpret_cast<const BFloat16*>(scales + 2 * n));
  if (format == ScaleFormat::kF16) return V::load_f16(scales + 2 * n);
  return V::load(reinterpret_cast<const float*>(scales + 4 * n));
}

template <class Codes, int Bits, bool HasZeros>
LLMQ_INLINE typename Codes::Zero narrow_zero(const unsigned char* zeros, int64_t n) {
  if constexpr (!HasZeros)
    return Bits == 4 ? Codes::middle4() : Codes::middle8();
  else
    return Bits == 4 ? Codes::zero4(zeros + n) : Codes::zero8(zeros + n);
}

// The pairs of one block of codes of V::kLanes columns from column n on: take(j, pair j).
template <class V, class Codes, int Bits, bool HasZeros, class Take>
LLMQ_INLINE void narrow_pairs(const unsigned char* block, int64_t n, typename Codes::Zero zero,
                              const Take& take) {
  constexpr int64_t kPanel = V::kPanelVectors * V::kLanes;
  if constexpr (Bits == 4) {
    typename Codes::B pairs[4];
    Codes::template expand4<HasZeros>(pairs, block + 4 * n, zero);
    unroll<4>([&](auto j) LLMQ_LAMBDA_INLINE { take(j, pairs[decltype(j)::value]); });
  } else {
    unroll<4>([&](auto j) LLMQ_LAMBDA_INLINE {
      const unsigned char* const even = block + 2 * decltype(j)::value * kPanel + n;
      take(j, Codes::template pair8<HasZeros>(even, even + kPanel, zero));
    });
  }
}

// Rows rows against Groups groups, from `group` on, of Panels panels, from `panel` on.
template <class V, class Product, class Codes, int Bits, bool HasZeros, int Rows, int Panels, int Groups>
__attribute__((noinline)) void narrow_tile(const NarrowProduct& p, int64_t panel, int64_t group) {
  constexpr int kVectors = V::kPanelVectors;
  constexpr int64_t kPanel = kVectors * V::kLanes;
  const NarrowLayout& layout = p.layout;
  const int64_t group_bytes = layout.group_bytes(kPanel), panel_bytes = group_bytes * layout.groups;
  const int64_t scale_bytes = kPanel * layout.scale_bytes(), header = scale_bytes + (HasZeros ? kPanel : 0);
  const unsigned char* const b = p.b + panel * panel_bytes + group * group_bytes;
  const unsigned char* const a = static_cast<const unsigned char*>(p.a) + group * layout.group * 2;

  typename V::F acc[Rows][Panels][Groups][kVectors];
  typename Codes::Zero zero[Panels][Groups][kVectors];
  // body(Index of panel, group, vector)
  const auto each = [&](const auto& body) LLMQ_LAMBDA_INLINE {
    unroll<Panels>([&](auto i) LLMQ_LAMBDA_INLINE {
      unroll<Groups>([&](auto g) LLMQ_LAMBDA_INLINE {
        unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE { body(i, g, v); });
      });
    });
  };
  const unsigned char* at[Panels][Groups];
  each([&](auto i, auto g, auto v) LLMQ_LAMBDA_INLINE {
    constexpr int kI = decltype(i)::value, kG = decltype(g)::value, kV = decltype(v)::value;
    const unsigned char* const start = b + kI * panel_bytes + kG * group_bytes;
    at[kI][kG] = start + header;
    zero[kI][kG][kV] = narrow_zero<Codes, Bits, HasZeros>(start + scale_bytes, kV * V::kLanes);
    unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE { acc[decltype(r)::value][kI][kG][kV] = V::set(0.0f); });
  });

  constexpr int64_t kBlockBytes = kNarrowBlock * kPanel * Bits / 8, kLeastAhead = 2048;
  const int64_t ahead =
      Panels == 1 && Groups * group_bytes > kLeastAhead ? Groups * group_bytes : kLeastAhead;
  for (int64_t block = 0; block < layout.group / kNarrowBlock; ++block) {
    each([&](auto i, auto g, auto v) LLMQ_LAMBDA_INLINE {
      constexpr int kI = decltype(i)::value, kG = decltype(g)::value, kV = decltype(v)::value;
      const unsigned char* const codes = at[kI][kG] + block * kBlockBytes;
      if constexpr (kV == 0)
        for (int64_t line = 0; line < kBlockBytes; line += 64) __builtin_prefetch(codes + ahead + line);
      const unsigned char* const x = a + (kG * layout.group + block * kNarrowBlock) * 2;
      narrow_pairs<V, Codes, Bits, HasZeros>(
          codes, kV * V::kLanes, zero[kI][kG][kV], [&](auto j, auto pair) LLMQ_LAMBDA_INLINE {
            unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE {
              constexpr int kR = decltype(r)::value;
              acc[kR][kI][kG][kV] = Product::add(
                  acc[kR][kI][kG][kV],
                  Product::broadcast(whole_unit(x + kR * p.a_row + 4 * decltype(j)::value)), pair);
            });
          });
    });
  }

  unroll<Panels>([&](auto i) LLMQ_LAMBDA_INLINE {
    unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
      constexpr int kI = decltype(i)::value, kV = decltype(v)::value;
      const int64_t n = (panel + kI) * kPanel + kV * V::kLanes, left = p.columns - n;
      const int count = static_cast<int>(left < 0 ? 0 : left > V::kLanes ? V::kLanes : left);
      unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE {
        constexpr int kR = decltype(r)::value;
        float* const c = p.c + kR * p.c_row + n;
        const float* const from = group > 0 ? c : p.start == nullptr ? nullptr : p.start + n;
        auto y = V::set(0.0f);
        if (from != nullptr) y = count == V::kLanes ? V::load(from) : V::load_first(from, count);
        unroll<Groups>([&](auto g) LLMQ_LAMBDA_INLINE {
          constexpr int kG = decltype(g)::value;
          const unsigned char* const scales = b + kI * panel_bytes + kG * group_bytes;
          y = V::fma(acc[kR][kI][kG][kV], narrow_scale<V>(scales, layout.scales, kV * V::kLanes), y);
        });
        if (count == V::kLanes)
          V::store(c, y);
        else
          V::store_first(c, y, count);
      });
    });
  });
}

// Groups of one panel from `group` on, Most at a time, then what is left of them.
template <class V, class Product, class Codes, int Bits, bool HasZeros, int Rows, int Most>
LLMQ_INLINE void narrow_groups(const NarrowProduct& p, int64_t panel, int64_t group) {
  if constexpr (Most > 0) {
    for (; group + Most <= p.layout.groups; group += Most)
      narrow_tile<V, Product, Codes, Bits, HasZeros, Rows, 1, Most>(p, panel, group);
    narrow_groups<V, Product, Codes, Bits, HasZeros, Rows, Most - 1>(p, panel, group);
  }
}

template <class V, class Product, class Codes, int Bits, bool HasZeros, int Rows>
LLMQ_INLINE void narrow_rows(const NarrowProduct& p) {
  constexpr int64_t kPanel = V::kPanelVectors * V::kLanes;
  constexpr int kGroups = Rows == 1 ? 4 : Rows == 2 ? 2 : 1, kPanels = Rows == 1 ? 4 : 1;
  const int64_t panels = (p.columns + kPanel - 1) / kPanel;
  int64_t panel = 0;
  // Few groups: panels in flight in their place.
  if (p.layout.groups < 3)
    for (; kPanels > 1 && panel + kPanels <= panels; panel += kPanels)
      for (int64_t group = 0; group < p.layout.groups; ++group)
        narrow_tile<V, Product, Codes, Bits, HasZeros, Rows, kPanels, 1>(p, panel, group);
  for (; panel < panels; ++panel) {
    // Nine groups are three threes rather than two fours and one alone.
    if (kGroups == 4 && p.layout.groups % 4 == 1 && p.layout.groups % 3 == 0)
      narrow_groups<V, Product, Codes, Bits, HasZeros, Rows, 3>(p, panel, 0);
    else
      narrow_groups<V, Product, Codes, Bits, HasZeros, Rows, kGroups>(p, panel, 0);
  }
}

template <class V, class Product, class Codes, int Bits, bool HasZeros, int Rows>
LLMQ_INLINE void narrow_by_rows(const NarrowProduct& p) {
  if constexpr (Rows > 0) {
    if (p.rows == Rows)
      narrow_rows<V, Product, Codes, Bits, HasZeros, Rows>(p);
    else
      narrow_by_rows<V, Product, Codes, Bits, HasZeros, Rows - 1>(p);
  }
}

// use(Index of the bits, Index of whether there are zeros)
template <class Use>
LLMQ_INLINE void with_layout(const NarrowLayout& layout, const Use& use) {
  if (layout.bits == 4)
    layout.zeros ? use(Index<4>{}, Index<1>{}) : use(Index<4>{}, Index<0>{});
  else
    layout.zeros ? use(Index<8>{}, Index<1>{}) : use(Index<8>{}, Index<0>{});
}

template <class V, class Product, class Codes>
void narrow_gemm(const NarrowProduct& p) {
  with_layout(p.layout, [&](auto bits, auto zeros) LLMQ_LAMBDA_INLINE {
    narrow_by_rows<V, Product, Codes, decltype(bits)::value, decltype(zeros)::value != 0, kNarrowRows>(p);
  });
}

// take(Index of the vector, unit, pair) for every pair of codes of a group.
template <class V, class Codes, class Take>
LLMQ_INLINE void narrow_each_pair(const unsigned char* group, const NarrowLayout& layout, const Take& take) {
  constexpr int64_t kPanel = V::kPanelVectors * V::kLanes;
  with_layout(layout, [&](auto bits, auto zeros) LLMQ_LAMBDA_INLINE {
    constexpr int kBits = decltype(bits)::value;
    constexpr bool kZeros = decltype(zeros)::value != 0;
    const unsigned char* const zero_bytes = group + kPanel * layout.scale_bytes();
    const unsigned char* codes = zero_bytes + (kZeros ? kPanel : 0);
    typename Codes::Zero zero[V::kPanelVectors];
    unroll<V::kPanelVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
      zero[decltype(v)::value] =
          narrow_zero<Codes, kBits, kZeros>(zero_bytes, decltype(v)::value * V::kLanes);
    });
    for (int64_t k = 0; k < layout.group; k += kNarrowBlock, codes += kNarrowBlock * kPanel * kBits / 8)
      unroll<V::kPanelVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
        narrow_pairs<V, Codes, kBits, kZeros>(
            codes, decltype(v)::value * V::kLanes, zero[decltype(v)::value],
            [&](auto j, auto pair) LLMQ_LAMBDA_INLINE { take(v, k / 2 + decltype(j)::value, pair); });
      });
  });
}

template <class V, class Codes>
void narrow_unpack_bf16(void* panel, float* scales, const unsigned char* group, const NarrowLayout& layout) {
  constexpr int64_t kPanel = V::kPanelVectors * V::kLanes;
  unsigned char* const to = static_cast<unsigned char*>(panel);
  for (int64_t n = 0; n < kPanel; n += V::kLanes)
    V::store(scales + n, narrow_scale<V>(group, layout.scales, n));
  narrow_each_pair<V, Codes>(group, layout, [&](auto v, int64_t unit, auto pair) LLMQ_LAMBDA_INLINE {
    Codes::store(to + 4 * (unit * kPanel + decltype(v)::value * V::kLanes), pair);
  });
}

template <class V>
void narrow_unpack_f32(void* panel, float* scales, const unsigned char* group, const NarrowLayout& layout) {
  constexpr int64_t kPanel = V::kPanelVectors * V::kLanes;
  float* const to = static_cast<float*>(panel);
  for (int64_t n = 0; n < kPanel; n += V::kLanes)
    V::store(scales + n, narrow_scale<V>(group, layout.scales, n));
  narrow_each_pair<V, WideCodes<V>>(group, layout, [&](auto v, int64_t unit, auto pair) LLMQ_LAMBDA_INLINE {
    const int64_t n = decltype(v)::value * V::kLanes;
    const auto scale = V::load(scales + n);
    V::store(to + 2 * unit * kPanel + n, V::mul(pair.even, scale));
    V::store(to + (2 * unit + 1) * kPanel + n, V::mul(pair.odd, scale));
  });
}

}  // namespace llmq
