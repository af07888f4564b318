// Products with a weight that stays in few bits: the codes become exact BF16 integers on the way into the
// multiplier, and a group's sum meets its scale once.
//
//   S_g = sum over the group of a[k] (code[k] - zero), a chain over pairs of k as `gemm` has it, from 0 on
//   y   = start; for g in order: y = fma(S_g, scale_g, y)
//
// A weight with minima (ggml's blocks) has w = code * scale - minimum, and with the middle z about which its
// codes are taken each group begins with
//
//   y = fma(A_g, z scale_g - minimum_g, y);   A_g = the sum of a's group
//
// narrow_codes.h has the bytes. One row: 3 to 4 instructions per 32 codes, and two groups of a panel are
// under way at once, since the sums of one alone would wait for their own additions. FP16 numbers of several
// groups are read once for them.
#pragma once
#include "kernels/cpu/ops/narrow_codes.h"
#include "kernels/cpu/ops/rows.h"

namespace llmq {

// The sum of a group for one vector of columns: a chain over its pairs, unless a product has an order of its
// own, which is then told every kStep codes. Inputs lie as BF16 pairs, or as the product wants them.
template <class V, class Product>
struct NarrowSum {
  static constexpr int kChains = 2;  // groups whose sums are under way at once, of few rows
  static constexpr int64_t kStep = 0, kPairBytes = 4;
  typename V::F total;
  static LLMQ_INLINE NarrowSum zero() { return {V::set(0.0f)}; }
  static LLMQ_INLINE auto input(const unsigned char* pair) { return Product::broadcast(whole_unit(pair)); }
  template <class B>
  LLMQ_INLINE void add(const B& input, const B& pair) {
    total = Product::add(total, input, pair);
  }
  LLMQ_INLINE void end_step() {}
};

// Rows rows against Chains groups side by side in memory of one panel, or against one group of Chains panels,
// so that enough sums are under way; of groups, as many times as there are so many up to `end`: y stays in
// registers.
template <class V, class Product, class Codes, int Bits, CodeForm Form, int Rows, int Chains, bool OfGroups>
__attribute__((noinline)) void narrow_tile(const NarrowProduct& p, int64_t panel, int64_t first_group,
                                           int64_t end) {
  constexpr int kVectors = V::kPanelVectors;
  constexpr int64_t kPanel = kVectors * V::kLanes;
  const NarrowLayout& layout = p.layout;
  const int64_t group_bytes = layout.group_bytes(kPanel), panel_bytes = layout.panel_bytes(kPanel);
  const int64_t header = layout.header_bytes(kPanel), zeros = header - kPanel;
  const int64_t chain_bytes = OfGroups ? group_bytes : panel_bytes;
  constexpr int kSums = OfGroups ? 1 : Chains;  // of panels
  using Sum = NarrowSum<V, Product>;

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
    const float* const from = first_group > 0      ? p.c + decltype(r)::value * p.c_row + n
                              : p.start == nullptr ? nullptr
                                                   : p.start + n;
    auto& sum = y[decltype(r)::value][decltype(i)::value][decltype(v)::value];
    sum = from == nullptr ? V::set(0.0f) : count == V::kLanes ? V::load(from) : V::load_first(from, count);
  });

  const unsigned char* const first_panel = p.b + panel * panel_bytes;
  const int64_t front = layout.factor_bytes(kPanel, layout.groups);
  const unsigned char* factors = first_panel + layout.factor_bytes(kPanel, first_group);
  int64_t to_next_factors = layout.together - first_group % layout.together;
  NarrowFactors<V> shared[kVectors];
  const auto take_factors = [&](const unsigned char* from) LLMQ_LAMBDA_INLINE {
    if constexpr (may_have_factors(Form))
      unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
        shared[decltype(v)::value] =
            narrow_factors<V>(NarrowGroup{&layout, nullptr, from}, decltype(v)::value * V::kLanes);
      });
  };
  if (OfGroups) take_factors(factors);
  constexpr int64_t kAhead = 2048;     // bytes, at least: what memory sends while one line is on its way
  constexpr int64_t kFarAhead = 4096;  // beyond them, into L2: codes of 4 bits outrun what L1 can ask for
  const int64_t together_bytes = Chains * group_bytes,
                ahead = (kAhead + together_bytes - 1) / together_bytes * together_bytes;
  for (int64_t group = first_group; group + (OfGroups ? Chains : 1) <= end; group += OfGroups ? Chains : 1) {
    const unsigned char* const b = first_panel + front + group * group_bytes;
    const unsigned char* const a =
        static_cast<const unsigned char*>(p.a) + group * layout.group / 2 * Sum::kPairBytes;
    Sum acc[Rows][Chains][kVectors];
    NarrowZero<Codes, Bits, Form> zero[Chains][kVectors];
    unroll<Chains>([&](auto i) LLMQ_LAMBDA_INLINE {
      unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
        constexpr int kI = decltype(i)::value, kV = decltype(v)::value;
        zero[kI][kV] = narrow_zero<Codes, Bits, Form>(layout, b + kI * chain_bytes + zeros, kV * V::kLanes);
        unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE { acc[decltype(r)::value][kI][kV] = Sum::zero(); });
      });
    });

    // Lines are asked for in the order of their addresses, which the memory likes best: of the chains that
    // follow where these are neighbours, further down the same panels where not.
    constexpr int64_t kUnit = narrow_unit(Bits), kUnitBytes = kUnit * kPanel * Bits / 8;
    for (int64_t unit = 0, units = layout.group / kUnit; unit < units; ++unit) {
      unroll<static_cast<int>(kUnit / kNarrowBlock)>([&](auto block) LLMQ_LAMBDA_INLINE {
        constexpr int kBlock = decltype(block)::value;
        unroll<Chains>([&](auto i) LLMQ_LAMBDA_INLINE {
          constexpr int kI = decltype(i)::value;
          const unsigned char* const codes = b + kI * chain_bytes + header + unit * kUnitBytes;
          if constexpr (kBlock == 0) {
            const unsigned char* const next =
                OfGroups && Chains > 1 ? b + ahead + (unit * Chains + kI) * kUnitBytes : codes + kAhead;
            for (int64_t line = 0; line < kUnitBytes; line += 64) __builtin_prefetch(next + line);
            if constexpr (Bits == 4)
              for (int64_t line = 0; line < kUnitBytes; line += 64)
                __builtin_prefetch(next + kFarAhead + line, 0, 2);
            if (OfGroups && Chains > 1 && kI == 0 && unit == 0)  // as much as the headers moved the codes
              for (int64_t line = Chains * (group_bytes - header); line < Chains * group_bytes; line += 64) {
                __builtin_prefetch(next + line);
                if constexpr (Bits == 4) __builtin_prefetch(next + kFarAhead + line, 0, 2);
              }
          }
          const unsigned char* const x =
              a + ((OfGroups ? kI * layout.group : 0) + unit * kUnit + kBlock * kNarrowBlock) / 2 *
                      Sum::kPairBytes;
          typename Codes::B pairs[kVectors][4];
          unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
            constexpr int kV = decltype(v)::value;
            narrow_pairs<V, Codes, Bits, Form, kBlock>(pairs[kV], codes, kV * V::kLanes, zero[kI][kV]);
          });
          unroll<4>([&](auto j) LLMQ_LAMBDA_INLINE {
            unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE {
              constexpr int kJ = decltype(j)::value, kR = decltype(r)::value;
              const auto input = Sum::input(x + kR * p.a_row + kJ * Sum::kPairBytes);
              unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
                constexpr int kV = decltype(v)::value;
                acc[kR][kI][kV].add(input, pairs[kV][kJ]);
              });
            });
          });
        });
      });
      if constexpr (Sum::kStep > 0)
        if ((unit + 1) * kUnit % Sum::kStep == 0 || unit + 1 == units)
          unroll<Rows * Chains * kVectors>(
              [&](auto i) LLMQ_LAMBDA_INLINE { (&acc[0][0][0])[decltype(i)::value].end_step(); });
    }

    // y = fma(sum, scale, y), group after group.
    unroll<Chains>([&](auto i) LLMQ_LAMBDA_INLINE {
      constexpr int kI = decltype(i)::value;
      const int64_t index = OfGroups ? group + kI : group;
      const NarrowGroup own{&layout, b + kI * chain_bytes, OfGroups ? factors : factors + kI * panel_bytes};
      if (!OfGroups) take_factors(own.factors);
      unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
        constexpr int kV = decltype(v)::value;
        const auto scale = narrow_scale<V, Form>(own, shared[kV], kV * V::kLanes);
        const auto each_row = [&](const auto& start) LLMQ_LAMBDA_INLINE {
          unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE {
            auto& sum = y[decltype(r)::value][OfGroups ? 0 : kI][kV];
            sum = V::fma(acc[decltype(r)::value][kI][kV].total, scale, start(r, sum));
          });
        };
        if constexpr (may_have_minima(Form)) {
          if (layout.minima) {
            const auto offset = narrow_offset<V>(own, shared[kV], scale, kV * V::kLanes);
            return each_row([&](auto r, typename V::F sum) LLMQ_LAMBDA_INLINE {
              return V::fma(V::set(p.sums[decltype(r)::value * p.sums_row + index]), offset, sum);
            });
          }
        }
        each_row([](auto, typename V::F sum) LLMQ_LAMBDA_INLINE { return sum; });
      });
      if (OfGroups && --to_next_factors == 0) {
        to_next_factors = layout.together;
        factors += layout.factor_bytes_of_block(kPanel);
        if (index + 1 < end) take_factors(factors);
      }
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

template <class V, class Product, class Codes, int Bits, CodeForm Form, int Rows>
LLMQ_INLINE void narrow_rows(const NarrowProduct& p) {
  constexpr int64_t kPanel = V::kPanelVectors * V::kLanes;
  // Lanes that are plain C++ have their panel's columns for chains, and take long to compile.
  constexpr int kChains = Rows <= 2 && V::kLanes > 1 ? NarrowSum<V, Product>::kChains : 1;
  const int64_t panels = (p.columns + kPanel - 1) / kPanel, groups = p.layout.groups;
  int64_t panel = 0;
  // Codes of 2, 3, 5 and 6 bits and of a book hardly ever have one scale a row: these go panel by panel.
  if constexpr (kChains > 1 && (Bits == 4 || Bits == 8) && Form != CodeForm::kBook)
    if (groups == 1)
      for (; panel + kChains <= panels; panel += kChains)
        narrow_tile<V, Product, Codes, Bits, Form, Rows, kChains, false>(p, panel, 0, 1);
  for (; panel < panels; ++panel) {
    const int64_t together = groups / kChains * kChains;
    if (together > 0) narrow_tile<V, Product, Codes, Bits, Form, Rows, kChains, true>(p, panel, 0, together);
    if constexpr (kChains > 1)
      if (together < groups)
        narrow_tile<V, Product, Codes, Bits, Form, Rows, 1, true>(p, panel, together, groups);
  }
}

// As many rows as there are; of the widths that are rarely met with many rows, powers of two at a time.
template <class V, class Product, class Codes, int Bits, CodeForm Form, int Rows>
LLMQ_INLINE void narrow_by_rows(const NarrowProduct& p) {
  constexpr bool kEvery = Bits == 4 || Bits == 8;
  if constexpr (Rows > 0) {
    if (p.rows < Rows)
      return narrow_by_rows < V, Product, Codes, Bits, Form, kEvery ? Rows - 1 : Rows / 2 > (p);
    narrow_rows<V, Product, Codes, Bits, Form, Rows>(p);
    if constexpr (!kEvery && Rows > 1) {
      NarrowProduct rest = p;
      rest.rows -= Rows;
      rest.a = static_cast<const unsigned char*>(p.a) + Rows * p.a_row;
      rest.c += Rows * p.c_row;
      if (p.sums != nullptr) rest.sums += Rows * p.sums_row;
      if (rest.rows > 0) narrow_by_rows<V, Product, Codes, Bits, Form, Rows / 2>(rest);
    }
  }
}

// use(Index of the bits, Index of the CodeForm)
template <class Use>
LLMQ_INLINE void with_layout(const NarrowLayout& layout, const Use& use) {
  constexpr Index<static_cast<int>(CodeForm::kMiddle)> kMiddle{};
  constexpr Index<static_cast<int>(CodeForm::kZeros)> kZeros{};
  constexpr Index<static_cast<int>(CodeForm::kBook)> kBook{};
  switch (layout.bits) {
    case 2:
      return use(Index<2>{}, kMiddle);
    case 3:
      return use(Index<3>{}, kMiddle);
    case 5:
      return use(Index<5>{}, kMiddle);
    case 6:
      return use(Index<6>{}, kMiddle);
    case 4:
      if (layout.book != nullptr) return use(Index<4>{}, kBook);
      return layout.zeros ? use(Index<4>{}, kZeros) : use(Index<4>{}, kMiddle);
    default:
      return layout.zeros ? use(Index<8>{}, kZeros) : use(Index<8>{}, kMiddle);
  }
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
  with_layout(p.layout, [&](auto bits, auto form) LLMQ_LAMBDA_INLINE {
    NarrowProduct some = p;
    for (int64_t row = 0; row < p.rows; row += kMost) {
      some.rows = p.rows - row < kMost ? p.rows - row : kMost;
      some.a = static_cast<const unsigned char*>(p.a) + row * p.a_row;
      some.c = p.c + row * p.c_row;
      if (p.sums != nullptr) some.sums = p.sums + row * p.sums_row;
      narrow_by_rows<V, Product, Codes, decltype(bits)::value, static_cast<CodeForm>(decltype(form)::value),
                     kMost>(some);
    }
  });
}

// take(Index of the vector, unit, pair) for every pair of codes [first, first + count) of a group, whole
// units of theirs; the first unit of a panel of B is 0.
template <class V, class Codes, int Bits, CodeForm Form, class Take>
LLMQ_INLINE void narrow_each_pair(const NarrowGroup& group, int64_t first, int64_t count, const Take& take) {
  constexpr int64_t kPanel = V::kPanelVectors * V::kLanes;
  constexpr int64_t kUnit = narrow_unit(Bits);
  const unsigned char* codes = group.at + group.layout->header_bytes(kPanel);
  NarrowZero<Codes, Bits, Form> zero[V::kPanelVectors];
  unroll<V::kPanelVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
    zero[decltype(v)::value] =
        narrow_zero<Codes, Bits, Form>(*group.layout, codes - kPanel, decltype(v)::value * V::kLanes);
  });
  codes += first * kPanel * Bits / 8;
  for (int64_t k = 0; k < count; k += kUnit, codes += kUnit * kPanel * Bits / 8)
    unroll<V::kPanelVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
      constexpr int kV = decltype(v)::value;
      unroll<static_cast<int>(kUnit / kNarrowBlock)>([&](auto block) LLMQ_LAMBDA_INLINE {
        constexpr int kBlock = decltype(block)::value;
        typename Codes::B pairs[4];
        narrow_pairs<V, Codes, Bits, Form, kBlock>(pairs, codes, kV * V::kLanes, zero[kV]);
        unroll<4>([&](auto j) LLMQ_LAMBDA_INLINE {
          take(v, k / 2 + 4 * kBlock + decltype(j)::value, pairs[decltype(j)::value]);
        });
      });
    });
}

template <class V, class Codes>
void narrow_unpack_bf16(void* panel, float* scales, float* offsets, const NarrowGroup& group, int64_t first,
                        int64_t count) {
  constexpr int64_t kPanel = V::kPanelVectors * V::kLanes;
  unsigned char* const to = static_cast<unsigned char*>(panel);
  with_layout(*group.layout, [&](auto bits, auto as) LLMQ_LAMBDA_INLINE {
    constexpr auto kForm = static_cast<CodeForm>(decltype(as)::value);
    for (int64_t n = 0; n < kPanel; n += V::kLanes) {
      const auto factors = narrow_factors<V>(group, n);
      const auto scale = narrow_scale<V, kForm>(group, factors, n);
      V::store(scales + n, scale);
      if (may_have_minima(kForm) && group.layout->minima)
        V::store(offsets + n, narrow_offset<V>(group, factors, scale, n));
    }
    narrow_each_pair<V, Codes, decltype(bits)::value, kForm>(
        group, first, count, [&](auto v, int64_t unit, auto pair) LLMQ_LAMBDA_INLINE {
          Codes::store(to + 4 * (unit * kPanel + decltype(v)::value * V::kLanes), pair);
        });
  });
}

template <class V>
void narrow_unpack_f32(void* panel, float* scales, float* offsets, const NarrowGroup& group, int64_t first,
                       int64_t count) {
  constexpr int64_t kPanel = V::kPanelVectors * V::kLanes;
  float* const to = static_cast<float*>(panel);
  with_layout(*group.layout, [&](auto bits, auto as) LLMQ_LAMBDA_INLINE {
    constexpr auto kForm = static_cast<CodeForm>(decltype(as)::value);
    for (int64_t n = 0; n < kPanel; n += V::kLanes)
      V::store(scales + n, narrow_exact_scale<V, kForm>(group, n));
    const auto unpack = [&](const auto& value) LLMQ_LAMBDA_INLINE {
      narrow_each_pair<V, WideCodes<V, true>, decltype(bits)::value, kForm>(
          group, first, count, [&](auto v, int64_t unit, auto pair) LLMQ_LAMBDA_INLINE {
            const int64_t n = decltype(v)::value * V::kLanes;
            V::store(to + 2 * unit * kPanel + n, value(pair.even, n));
            V::store(to + (2 * unit + 1) * kPanel + n, value(pair.odd, n));
          });
    };
    if constexpr (kForm == CodeForm::kBook)
      if (const ScaleFormat rounded = group.layout->book->rounded; rounded != ScaleFormat::kF32)
        return unpack([&](auto code, int64_t n) LLMQ_LAMBDA_INLINE {
          return narrow_rounded<V>(V::mul(code, V::load(scales + n)), rounded);
        });
    if constexpr (may_have_minima(kForm))
      if (group.layout->minima) {
        for (int64_t n = 0; n < kPanel; n += V::kLanes)
          V::store(offsets + n, narrow_minimum<V>(group, narrow_factors<V>(group, n), n));
        const auto middle = V::set(static_cast<float>(narrow_middle(decltype(bits)::value)));
        return unpack([&](auto code, int64_t n) LLMQ_LAMBDA_INLINE {
          return V::sub(V::mul(V::add(code, middle), V::load(scales + n)), V::load(offsets + n));
        });
      }
    unpack([&](auto code, int64_t n) LLMQ_LAMBDA_INLINE { return V::mul(code, V::load(scales + n)); });
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
