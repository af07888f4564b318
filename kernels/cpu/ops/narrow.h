// Products with a weight that stays in 4 or 8 bits: the codes become exact BF16 integers on the way into the
// multiplier, and a group's sum meets its scale once.
//
//   S_g = sum over the group of a[k] (code[k] - zero), a chain over pairs of k as `gemm` has it, from 0 on
//   y   = start; for g in order: y = fma(S_g, scale_g, y)
//
// A group of a panel of P columns, bytes in order:
//   scales: P numbers of NarrowLayout::scales      zeros, if any: P bytes (8-bit codes: signed, less 128)
//   4 bits: per 8 codes of each column P words of 32 bits; nibble j of the low half is code 2 j, of the high
//   half
//           code 2 j + 1, so that a shift brings a pair under the two halves of a lane. Without zeros the
//           zero is 8.
//   8 bits: per code of each column P signed bytes: code less zero without zeros, code less 128 with them.
//
// A weight with minima (ggml's blocks) has w = code * scale - minimum, and with the middle z in which its
// codes are stored
//
//   y = start + sum over g of A_g (z scale_g - minimum_g), then as above;   A_g = the sum of a's group
//
// which is one more product, of FP32 numbers and 1/32 or 1/16 of the depth, made by `gemm` before this one.
//
// One row: 3 to 4 instructions per 32 codes, and two groups of a panel are under way at once, since the sums
// of one alone would wait for their own additions.
#pragma once
#include "kernels/cpu/ops/gemm.h"
#include "kernels/cpu/ops/rows.h"

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

// The four pairs of one block of codes of V::kLanes columns from column n on.
template <class V, class Codes, int Bits, bool HasZeros>
LLMQ_INLINE void narrow_pairs(typename Codes::B (&pairs)[4], const unsigned char* block, int64_t n,
                              typename Codes::Zero zero) {
  constexpr int64_t kPanel = V::kPanelVectors * V::kLanes;
  if constexpr (Bits == 4) {
    Codes::template expand4<HasZeros>(pairs, block + 4 * n, zero);
  } else {
    unroll<4>([&](auto j) LLMQ_LAMBDA_INLINE {
      const unsigned char* const even = block + 2 * decltype(j)::value * kPanel + n;
      pairs[decltype(j)::value] = Codes::template pair8<HasZeros>(even, even + kPanel, zero);
    });
  }
}

// Rows rows against Chains groups side by side in memory of one panel, or against one group of Chains panels,
// so that enough sums are under way; of groups, as many times as there are so many up to `end`: y stays in
// registers.
template <class V, class Product, class Codes, int Bits, bool HasZeros, int Rows, int Chains, bool OfGroups>
__attribute__((noinline)) void narrow_tile(const NarrowProduct& p, int64_t panel, int64_t first_group,
                                           int64_t end) {
  constexpr int kVectors = V::kPanelVectors;
  constexpr int64_t kPanel = kVectors * V::kLanes;
  const NarrowLayout& layout = p.layout;
  const int64_t group_bytes = layout.group_bytes(kPanel), panel_bytes = group_bytes * layout.groups;
  const int64_t scale_bytes = kPanel * layout.scale_bytes(), header = scale_bytes + (HasZeros ? kPanel : 0);
  const int64_t chain_bytes = OfGroups ? group_bytes : panel_bytes;
  constexpr int kSums = OfGroups ? 1 : Chains;  // of panels

  // take(row, sum, vector, its y, how many of its columns there are)
  const auto each_y = [&](const auto& take) LLMQ_LAMBDA_INLINE {
    unroll<kSums>([&](auto i) LLMQ_LAMBDA_INLINE {
      unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
        const int64_t n = (panel + decltype(i)::value) * kPanel + decltype(v)::value * V::kLanes,
                      left = p.columns - n;
        const int count = static_cast<int>(left < 0 ? 0 : left > V::kLanes ? V::kLanes : left);
        unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE { take(r, i, v, n, count); });
      });
    });
  };
  typename V::F y[Rows][kSums][kVectors];
  each_y([&](auto r, auto i, auto v, int64_t n, int count) LLMQ_LAMBDA_INLINE {
    const float* const from = first_group > 0 || p.accumulate ? p.c + decltype(r)::value * p.c_row + n
                              : p.start == nullptr            ? nullptr
                                                              : p.start + n;
    auto& sum = y[decltype(r)::value][decltype(i)::value][decltype(v)::value];
    sum = from == nullptr ? V::set(0.0f) : count == V::kLanes ? V::load(from) : V::load_first(from, count);
  });

  for (int64_t group = first_group; group + (OfGroups ? Chains : 1) <= end; group += OfGroups ? Chains : 1) {
    const unsigned char* const b = p.b + panel * panel_bytes + group * group_bytes;
    const unsigned char* const a = static_cast<const unsigned char*>(p.a) + group * layout.group * 2;
    typename V::F acc[Rows][Chains][kVectors];
    typename Codes::Zero zero[Chains][kVectors];
    unroll<Chains>([&](auto i) LLMQ_LAMBDA_INLINE {
      unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
        constexpr int kI = decltype(i)::value, kV = decltype(v)::value;
        zero[kI][kV] = narrow_zero<Codes, Bits, HasZeros>(b + kI * chain_bytes + scale_bytes, kV * V::kLanes);
        unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE { acc[decltype(r)::value][kI][kV] = V::set(0.0f); });
      });
    });

    // Lines are asked for in the order of their addresses, which the memory likes best: of the chains that
    // follow where these are neighbours, further down the same panels where not.
    constexpr int64_t kBlockBytes = kNarrowBlock * kPanel * Bits / 8, kAhead = 2048;
    for (int64_t block = 0; block < layout.group / kNarrowBlock; ++block)
      unroll<Chains>([&](auto i) LLMQ_LAMBDA_INLINE {
        constexpr int kI = decltype(i)::value;
        const unsigned char* const codes = b + kI * chain_bytes + header + block * kBlockBytes;
        const unsigned char* const next = OfGroups && Chains > 1
                                              ? b + Chains * group_bytes + (block * Chains + kI) * kBlockBytes
                                              : codes + kAhead;
        for (int64_t line = 0; line < kBlockBytes; line += 64) __builtin_prefetch(next + line);
        const unsigned char* const x = a + ((OfGroups ? kI * layout.group : 0) + block * kNarrowBlock) * 2;
        typename Codes::B pairs[kVectors][4];
        unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
          constexpr int kV = decltype(v)::value;
          narrow_pairs<V, Codes, Bits, HasZeros>(pairs[kV], codes, kV * V::kLanes, zero[kI][kV]);
        });
        unroll<4>([&](auto j) LLMQ_LAMBDA_INLINE {
          unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE {
            constexpr int kJ = decltype(j)::value, kR = decltype(r)::value;
            const auto input = Product::broadcast(whole_unit(x + kR * p.a_row + 4 * kJ));
            unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
              constexpr int kV = decltype(v)::value;
              acc[kR][kI][kV] = Product::add(acc[kR][kI][kV], input, pairs[kV][kJ]);
            });
          });
        });
      });

    // y = fma(sum, scale, y), group after group.
    unroll<Chains>([&](auto i) LLMQ_LAMBDA_INLINE {
      unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
        constexpr int kI = decltype(i)::value, kV = decltype(v)::value;
        const auto scale = narrow_scale<V>(b + kI * chain_bytes, layout.scales, kV * V::kLanes);
        unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE {
          auto& sum = y[decltype(r)::value][OfGroups ? 0 : kI][kV];
          sum = V::fma(acc[decltype(r)::value][kI][kV], scale, sum);
        });
      });
    });
  }
  each_y([&](auto r, auto i, auto v, int64_t n, int count) LLMQ_LAMBDA_INLINE {
    float* const c = p.c + decltype(r)::value * p.c_row + n;
    const auto& sum = y[decltype(r)::value][decltype(i)::value][decltype(v)::value];
    if (count == V::kLanes)
      V::store(c, sum);
    else
      V::store_first(c, sum, count);
  });
}

template <class V, class Product, class Codes, int Bits, bool HasZeros, int Rows>
LLMQ_INLINE void narrow_rows(const NarrowProduct& p) {
  constexpr int64_t kPanel = V::kPanelVectors * V::kLanes;
  constexpr int kChains = Rows <= 2 ? 2 : 1;
  const int64_t panels = (p.columns + kPanel - 1) / kPanel, groups = p.layout.groups;
  int64_t panel = 0;
  if (groups == 1)
    for (; panel + kChains <= panels; panel += kChains)
      narrow_tile<V, Product, Codes, Bits, HasZeros, Rows, kChains, false>(p, panel, 0, 1);
  for (; panel < panels; ++panel) {
    const int64_t together = groups / kChains * kChains;
    if (together > 0)
      narrow_tile<V, Product, Codes, Bits, HasZeros, Rows, kChains, true>(p, panel, 0, together);
    if (together < groups)
      narrow_tile<V, Product, Codes, Bits, HasZeros, Rows, 1, true>(p, panel, together, groups);
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

// Rows that share one expansion of the codes. Without an instruction for BF16 products two fill the
// registers, and lanes that are plain C++ take minutes to compile for more than one.
template <class V, class Product>
struct NarrowTile {
  static constexpr int kRows = 8;
};
template <class V>
struct NarrowTile<V, ProductBF16<V>> {
  static constexpr int kRows = V::kLanes > 1 ? 2 : 1;
};

template <class V, class Product, class Codes>
void narrow_gemm(const NarrowProduct& p) {
  constexpr int kMost = NarrowTile<V, Product>::kRows;
  with_layout(p.layout, [&](auto bits, auto zeros) LLMQ_LAMBDA_INLINE {
    NarrowProduct some = p;
    for (int64_t row = 0; row < p.rows; row += kMost) {
      some.rows = p.rows - row < kMost ? p.rows - row : kMost;
      some.a = static_cast<const unsigned char*>(p.a) + row * p.a_row;
      some.c = p.c + row * p.c_row;
      narrow_by_rows<V, Product, Codes, decltype(bits)::value, decltype(zeros)::value != 0, kMost>(some);
    }
  });
}

// take(Index of the vector, unit, pair) for every pair of codes [first, first + count) of a group; the first
// unit is 0.
template <class V, class Codes, class Take>
LLMQ_INLINE void narrow_each_pair(const unsigned char* group, const NarrowLayout& layout, int64_t first,
                                  int64_t count, const Take& take) {
  constexpr int64_t kPanel = V::kPanelVectors * V::kLanes;
  with_layout(layout, [&](auto bits, auto zeros) LLMQ_LAMBDA_INLINE {
    constexpr int kBits = decltype(bits)::value;
    constexpr bool kZeros = decltype(zeros)::value != 0;
    const unsigned char* const zero_bytes = group + kPanel * layout.scale_bytes();
    const unsigned char* codes = zero_bytes + (kZeros ? kPanel : 0) + first * kPanel * kBits / 8;
    typename Codes::Zero zero[V::kPanelVectors];
    unroll<V::kPanelVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
      zero[decltype(v)::value] =
          narrow_zero<Codes, kBits, kZeros>(zero_bytes, decltype(v)::value * V::kLanes);
    });
    for (int64_t k = 0; k < count; k += kNarrowBlock, codes += kNarrowBlock * kPanel * kBits / 8)
      unroll<V::kPanelVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
        typename Codes::B pairs[4];
        narrow_pairs<V, Codes, kBits, kZeros>(pairs, codes, decltype(v)::value * V::kLanes,
                                              zero[decltype(v)::value]);
        unroll<4>([&](auto j)
                      LLMQ_LAMBDA_INLINE { take(v, k / 2 + decltype(j)::value, pairs[decltype(j)::value]); });
      });
  });
}

template <class V, class Codes>
void narrow_unpack_bf16(void* panel, float* scales, const unsigned char* group, const NarrowLayout& layout,
                        const float*, int64_t first, int64_t count) {
  constexpr int64_t kPanel = V::kPanelVectors * V::kLanes;
  unsigned char* const to = static_cast<unsigned char*>(panel);
  for (int64_t n = 0; n < kPanel; n += V::kLanes)
    V::store(scales + n, narrow_scale<V>(group, layout.scales, n));
  narrow_each_pair<V, Codes>(group, layout, first, count,
                             [&](auto v, int64_t unit, auto pair) LLMQ_LAMBDA_INLINE {
                               Codes::store(to + 4 * (unit * kPanel + decltype(v)::value * V::kLanes), pair);
                             });
}

template <class V>
void narrow_unpack_f32(void* panel, float* scales, const unsigned char* group, const NarrowLayout& layout,
                       const float* minima, int64_t first, int64_t count) {
  constexpr int64_t kPanel = V::kPanelVectors * V::kLanes;
  float* const to = static_cast<float*>(panel);
  for (int64_t n = 0; n < kPanel; n += V::kLanes)
    V::store(scales + n, narrow_scale<V>(group, layout.scales, n));
  const auto unpack = [&](const auto& value) LLMQ_LAMBDA_INLINE {
    narrow_each_pair<V, WideCodes<V>>(group, layout, first, count,
                                      [&](auto v, int64_t unit, auto pair) LLMQ_LAMBDA_INLINE {
                                        const int64_t n = decltype(v)::value * V::kLanes;
                                        V::store(to + 2 * unit * kPanel + n, value(pair.even, n));
                                        V::store(to + (2 * unit + 1) * kPanel + n, value(pair.odd, n));
                                      });
  };
  if (minima == nullptr)
    return unpack([&](auto code, int64_t n) LLMQ_LAMBDA_INLINE { return V::mul(code, V::load(scales + n)); });
  const auto middle = V::set(layout.bits == 4 ? 8.0f : 0.0f);
  unpack([&](auto code, int64_t n) LLMQ_LAMBDA_INLINE {
    return V::sub(V::mul(V::add(code, middle), V::load(scales + n)), V::load(minima + n));
  });
}

template <class V>
void group_sums(float* sums, const BFloat16* x, int64_t groups, int64_t group) {
  for (int64_t g = 0; g < groups; ++g, x += group) {
    auto total = V::set(0.0f);
    by_lanes<V>(group, [&](int64_t i, auto count)
                           LLMQ_LAMBDA_INLINE { total = V::add(total, read<V>(x + i, count)); });
    sums[g] = V::sum(total);
  }
}

}  // namespace llmq
