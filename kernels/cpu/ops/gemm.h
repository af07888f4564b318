// C (+)= A B, panel by panel of B, in register tiles of V::kRowTile x V::kPanelVectors vectors (cpu_kernels.h
// has the order of the sum).
//
// A is read in place by broadcasts. Per unit: kPanelVectors loads of B, kRowTile broadcasts, kRowTile *
// kPanelVectors products; with AVX-512's 12 x 2 that is 14 loads for 24 products, so the products set the
// pace as long as a panel and the rows stay in L2.
#pragma once
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/ops/unroll.h"

namespace llmq {

// The last product of an odd depth: its pair's second half is not there to be read.
LLMQ_INLINE uint32_t half_unit(const unsigned char* at) {
  uint16_t first;
  __builtin_memcpy(&first, at, sizeof first);
  return first;
}

LLMQ_INLINE uint32_t whole_unit(const unsigned char* at) {
  uint32_t unit;
  __builtin_memcpy(&unit, at, sizeof unit);
  return unit;
}

constexpr int64_t kLongDepth = 128;  // products beyond which C has time to come into L1

template <class V, class Product, int Rows, bool Transposed>
__attribute__((noinline)) void gemm_tile(const GemmPanel& g, int64_t first_row) {
  constexpr int kVectors = V::kPanelVectors;
  constexpr int kPanel = kVectors * V::kLanes;
  typename V::F acc[Rows][kVectors];
  float* const c = g.c + first_row * g.c_row;
  const bool full = g.columns == kPanel;
  const auto count = [&](int v) LLMQ_LAMBDA_INLINE {
    const int64_t left = g.columns - v * V::kLanes;
    return static_cast<int>(left < 0 ? 0 : left > V::kLanes ? V::kLanes : left);
  };
  // body(accumulator, row, vector) for each of the tile's accumulators.
  const auto each = [&](const auto& body) LLMQ_LAMBDA_INLINE {
    unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE {
      unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
        body(acc[decltype(r)::value][decltype(v)::value], decltype(r)::value, decltype(v)::value);
      });
    });
  };
  if (!g.accumulate && g.start == nullptr) {
    each([&](typename V::F& sum, int, int) LLMQ_LAMBDA_INLINE { sum = V::set(0.0f); });
  } else {
    const float* const from = g.accumulate ? c : g.start;
    const int64_t step = g.accumulate ? g.c_row : 0;
    if (full)
      each([&](typename V::F& sum, int r, int v)
               LLMQ_LAMBDA_INLINE { sum = V::load(from + r * step + v * V::kLanes); });
    else
      each([&](typename V::F& sum, int r, int v)
               LLMQ_LAMBDA_INLINE { sum = V::load_first(from + r * step + v * V::kLanes, count(v)); });
  }
  // C's lines come while the products run, so that the stores at the end do not wait for them.
  if (g.depth > kLongDepth)
    for (int r = 0; r < Rows; ++r)
      for (int line = 0; line < kPanel; line += 16) __builtin_prefetch(c + r * g.c_row + line, 1);

  const unsigned char* a = static_cast<const unsigned char*>(g.a) + first_row * (Transposed ? 4 : g.a_row);
  const unsigned char* b = static_cast<const unsigned char*>(g.b);
  const int64_t units = g.depth / Product::kPerUnit;
  const int64_t row = g.a_row;
  // Rows in threes: base, base + row, base + 2 row are x86 addresses, so four bases serve twelve rows.
  const unsigned char* base[(Rows + 2) / 3];
  unroll<(Rows + 2) / 3>(
      [&](auto i) LLMQ_LAMBDA_INLINE { base[decltype(i)::value] = a + decltype(i)::value * 3 * row; });
  const auto step = [&](auto read_unit) LLMQ_LAMBDA_INLINE {
    typename Product::B weights[kVectors];
    unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
      weights[decltype(v)::value] = Product::load(b + decltype(v)::value * V::kLanes * 4);
    });
    unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE {
      constexpr int kR = decltype(r)::value;
      uint32_t unit;
      if constexpr (Transposed)
        unit = read_unit(a + 4 * kR);
      else
        unit = read_unit(base[kR / 3] + (kR % 3) * row);
      const auto input = Product::broadcast(unit);
      unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
        constexpr int kV = decltype(v)::value;
        acc[kR][kV] = Product::add(acc[kR][kV], input, weights[kV]);
      });
    });
  };
  for (int64_t u = 0; u < units; ++u) {
    step([](const unsigned char* at) LLMQ_LAMBDA_INLINE { return whole_unit(at); });
    b += kPanel * 4;
    if constexpr (Transposed)
      a += row;
    else
      unroll<(Rows + 2) / 3>([&](auto i) LLMQ_LAMBDA_INLINE { base[decltype(i)::value] += 4; });
  }
  if constexpr (!Transposed && Product::kPerUnit == 2)
    if (g.depth % 2 != 0) step([](const unsigned char* at) LLMQ_LAMBDA_INLINE { return half_unit(at); });

  if (full)
    each([&](typename V::F& sum, int r, int v)
             LLMQ_LAMBDA_INLINE { V::store(c + r * g.c_row + v * V::kLanes, sum); });
  else
    each([&](typename V::F& sum, int r, int v)
             LLMQ_LAMBDA_INLINE { V::store_first(c + r * g.c_row + v * V::kLanes, sum, count(v)); });
}

// Fewer rows than a tile has, in one tile of their own.
template <class V, class Product, int Rows>
LLMQ_INLINE void gemm_last_rows(const GemmPanel& g, int64_t first_row, int64_t rows) {
  if constexpr (Rows > 0) {
    if (rows == Rows)
      gemm_tile<V, Product, Rows, false>(g, first_row);
    else
      gemm_last_rows<V, Product, Rows - 1>(g, first_row, rows);
  }
}

// Transposed rows from first_row on, Rows at a time, then fewer: whole panels of them, or a tile's channels.
template <class V, class Product, int Rows>
LLMQ_INLINE void gemm_transposed_rows(const GemmPanel& g, int64_t first_row) {
  for (; first_row + Rows <= g.rows; first_row += Rows) gemm_tile<V, Product, Rows, true>(g, first_row);
  if constexpr (Rows > 8)
    gemm_transposed_rows<V, Product, 8>(g, first_row);
  else if constexpr (Rows > 1)
    gemm_transposed_rows<V, Product, Rows / 2>(g, first_row);
}

// One or two rows against several whole panels at once: a chain per element as ever, but enough of them in
// flight that the additions' latency does not set the pace of a product that only reads its weights.
template <class V, class Product, int Rows, int Panels>
__attribute__((noinline)) void gemm_few_rows(const GemmPanel& g) {
  constexpr int kVectors = V::kPanelVectors, kPanel = kVectors * V::kLanes;
  typename V::F acc[Rows][Panels][kVectors];
  const auto each = [&](const auto& body) LLMQ_LAMBDA_INLINE {
    unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE {
      unroll<Panels>([&](auto p) LLMQ_LAMBDA_INLINE {
        unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
          constexpr int kR = decltype(r)::value, kP = decltype(p)::value, kV = decltype(v)::value;
          body(acc[kR][kP][kV], kR, kP * kPanel + kV * V::kLanes);
        });
      });
    });
  };
  const float* const from = g.accumulate ? g.c : g.start;
  const int64_t from_row = g.accumulate ? g.c_row : 0;
  if (from == nullptr)
    each([](typename V::F& sum, int, int) LLMQ_LAMBDA_INLINE { sum = V::set(0.0f); });
  else
    each([&](typename V::F& sum, int r, int n)
             LLMQ_LAMBDA_INLINE { sum = V::load(from + r * from_row + n); });
  const unsigned char* a = static_cast<const unsigned char*>(g.a);
  const unsigned char* b = static_cast<const unsigned char*>(g.b);
  const auto step = [&](auto read_unit) LLMQ_LAMBDA_INLINE {
    unroll<Panels>([&](auto p) LLMQ_LAMBDA_INLINE {
      unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
        constexpr int kP = decltype(p)::value, kV = decltype(v)::value;
        const auto weights = Product::load(b + kP * g.b_panel + kV * V::kLanes * 4);
        unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE {
          constexpr int kR = decltype(r)::value;
          acc[kR][kP][kV] =
              Product::add(acc[kR][kP][kV], Product::broadcast(read_unit(a + kR * g.a_row)), weights);
        });
      });
    });
  };
  const int64_t units = g.depth / Product::kPerUnit;
  for (int64_t u = 0; u < units; ++u, a += 4, b += kPanel * 4)
    step([](const unsigned char* at) LLMQ_LAMBDA_INLINE { return whole_unit(at); });
  if constexpr (Product::kPerUnit == 2)
    if (g.depth % 2 != 0) step([](const unsigned char* at) LLMQ_LAMBDA_INLINE { return half_unit(at); });
  each([&](typename V::F& sum, int r, int n) LLMQ_LAMBDA_INLINE { V::store(g.c + r * g.c_row + n, sum); });
}

// The first panels of g that gemm_few_rows takes at once; their number.
template <class V, class Product>
LLMQ_INLINE int64_t gemm_first_panels(const GemmPanel& g) {
  const int64_t whole = g.columns / (V::kPanelVectors * V::kLanes);
  if (g.transposed || g.rows > 2 || whole < 2) return 0;
  if (g.rows == 2) return gemm_few_rows<V, Product, 2, 2>(g), 2;
  if (whole == 2) return gemm_few_rows<V, Product, 1, 2>(g), 2;
  if (whole == 3) return gemm_few_rows<V, Product, 1, 3>(g), 3;
  return gemm_few_rows<V, Product, 1, 4>(g), 4;
}

template <class V, class Product>
void gemm_one_panel(const GemmPanel& g) {
  if constexpr (Product::kPerUnit < 4)
    if (g.transposed) return gemm_transposed_rows<V, Product, V::kRowTile>(g, 0);
  int64_t row = 0;
  for (; row + V::kRowTile <= g.rows; row += V::kRowTile) gemm_tile<V, Product, V::kRowTile, false>(g, row);
  gemm_last_rows<V, Product, V::kRowTile - 1>(g, row, g.rows - row);
}

template <class V, class Product>
void gemm(const GemmPanel& g) {
  constexpr int64_t kPanel = V::kPanelVectors * V::kLanes;
  GemmPanel rest = g;
  while (rest.columns > 0) {
    int64_t panels = gemm_first_panels<V, Product>(rest);
    if (panels == 0) {
      GemmPanel one = rest;
      if (one.columns > kPanel) one.columns = kPanel;
      gemm_one_panel<V, Product>(one);
      panels = 1;
    }
    rest.b = static_cast<const unsigned char*>(rest.b) + panels * rest.b_panel;
    rest.c += panels * kPanel;
    if (rest.start != nullptr) rest.start += panels * kPanel;
    rest.columns -= panels * kPanel;
  }
}

// Rows rows through all groups of one panel: what a group sums and what it is added to are in registers, half
// a tile's rows of each.
template <class V, class Product, int Rows>
__attribute__((noinline)) void gemm_groups_tile(const GemmPanel& g, int64_t group, int64_t first_row) {
  constexpr int kVectors = V::kPanelVectors, kPanel = kVectors * V::kLanes, kTogether = 4;
  typename V::F y[Rows][kVectors];
  float* const c = g.c + first_row * g.c_row;
  const auto each = [&](const auto& body) LLMQ_LAMBDA_INLINE {
    unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE {
      unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
        constexpr int kV = decltype(v)::value;
        const int64_t left = g.columns - kV * V::kLanes;
        const int count = static_cast<int>(left < 0 ? 0 : left > V::kLanes ? V::kLanes : left);
        body(y[decltype(r)::value][kV], decltype(r)::value, kV * V::kLanes, count);
      });
    });
  };
  const float* const from = g.accumulate ? c : g.start;
  const int64_t from_row = g.accumulate ? g.c_row : 0;
  each([&](typename V::F& sum, int r, int n, int count) LLMQ_LAMBDA_INLINE {
    const float* const at = from + r * from_row + n;
    sum = from == nullptr ? V::set(0.0f) : count == V::kLanes ? V::load(at) : V::load_first(at, count);
  });

  const int64_t row = g.a_row, units = group / Product::kPerUnit;
  const unsigned char* base[(Rows + 2) / 3];  // rows in threes, as gemm_tile has them
  unroll<(Rows + 2) / 3>([&](auto i) LLMQ_LAMBDA_INLINE {
    base[decltype(i)::value] =
        static_cast<const unsigned char*>(g.a) + (first_row + decltype(i)::value * 3) * row;
  });
  const auto advance = [&](int64_t bytes) LLMQ_LAMBDA_INLINE {
    unroll<(Rows + 2) / 3>([&](auto i) LLMQ_LAMBDA_INLINE { base[decltype(i)::value] += bytes; });
  };
  for (int64_t i = 0; i * group < g.depth; ++i) {
    const unsigned char* b = static_cast<const unsigned char*>(g.b) + i * g.b_panel;
    typename V::F acc[Rows][kVectors];
    unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE {
      unroll<kVectors>(
          [&](auto v) LLMQ_LAMBDA_INLINE { acc[decltype(r)::value][decltype(v)::value] = V::set(0.0f); });
    });
    const auto step = [&](int64_t at, auto read_unit) LLMQ_LAMBDA_INLINE {
      typename Product::B weights[kVectors];
      unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
        weights[decltype(v)::value] = Product::load(b + at * kPanel + decltype(v)::value * V::kLanes * 4);
      });
      unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE {
        constexpr int kR = decltype(r)::value;
        const auto input = Product::broadcast(read_unit(base[kR / 3] + (kR % 3) * row + at));
        unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
          constexpr int kV = decltype(v)::value;
          acc[kR][kV] = Product::add(acc[kR][kV], input, weights[kV]);
        });
      });
    };
    const auto whole = [](const unsigned char* at) LLMQ_LAMBDA_INLINE { return whole_unit(at); };
    int64_t unit = 0;
    for (; unit + kTogether <= units; unit += kTogether, b += 4 * kTogether * kPanel) {
      unroll<kTogether>([&](auto j) LLMQ_LAMBDA_INLINE { step(4 * decltype(j)::value, whole); });
      advance(4 * kTogether);
    }
    for (; unit < units; ++unit, b += 4 * kPanel) {
      step(0, whole);
      advance(4);
    }
    if (group % Product::kPerUnit != 0) {
      step(0, [](const unsigned char* at) LLMQ_LAMBDA_INLINE { return half_unit(at); });
      advance(2);
    }
    const float* const offset = g.offset == nullptr ? nullptr : g.offset + i * kPanel;
    unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
      constexpr int kV = decltype(v)::value, kN = kV * V::kLanes;
      const auto scale = V::load(g.scale + i * kPanel + kN);
      unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE {
        constexpr int kR = decltype(r)::value;
        auto& sum = y[kR][kV];
        if (offset != nullptr)
          sum = V::fma(V::set(g.row_sums[(first_row + kR) * g.row_sums_row + i]), V::load(offset + kN), sum);
        sum = V::fma(acc[kR][kV], scale, sum);
      });
    });
  }
  each([&](typename V::F& sum, int r, int n, int count) LLMQ_LAMBDA_INLINE {
    float* const at = c + r * g.c_row + n;
    if (count == V::kLanes)
      V::store(at, sum);
    else
      V::store_first(at, sum, count);
  });
}

template <class V, class Product, int Rows>
LLMQ_INLINE void gemm_groups_rows(const GemmPanel& g, int64_t group, int64_t first_row) {
  for (; first_row + Rows <= g.rows; first_row += Rows)
    gemm_groups_tile<V, Product, Rows>(g, group, first_row);
  if constexpr (Rows > 1)
    if (first_row < g.rows) gemm_groups_rows<V, Product, Rows / 2>(g, group, first_row);
}

// With scales; without, one chain, for which the groups are as one where they lie side by side.
template <class V, class Product>
void gemm_groups(const GemmPanel& g, int64_t group) {
  constexpr int64_t kPanel = V::kPanelVectors * V::kLanes;
  if (g.scale != nullptr) return gemm_groups_rows<V, Product, (V::kRowTile + 1) / 2>(g, group, 0);
  constexpr int64_t kElement = 4 / Product::kPerUnit;
  const int64_t step = g.b_panel == group * kElement * kPanel ? g.depth : group;
  GemmPanel one = g;
  one.depth = step;
  for (int64_t k = 0, i = 0; k < g.depth; k += step, ++i) {
    one.a = static_cast<const unsigned char*>(g.a) + k * kElement;
    one.b = static_cast<const unsigned char*>(g.b) + i * g.b_panel;
    one.accumulate = g.accumulate || i > 0;
    gemm<V, Product>(one);
  }
}

// FP32: one fused multiply-add per unit.
template <class V>
struct ProductF32 {
  static constexpr int kPerUnit = 1;
  static constexpr bool kOneInstruction = true;
  using B = typename V::F;
  static LLMQ_INLINE B load(const unsigned char* at) { return V::load(reinterpret_cast<const float*>(at)); }
  static LLMQ_INLINE typename V::F broadcast(uint32_t unit) { return V::set(float_from_bits(unit)); }
  static LLMQ_INLINE typename V::F add(typename V::F acc, typename V::F a, B b) { return V::fma(a, b, acc); }
  static LLMQ_INLINE void store(float* p, typename V::F v) {
    V::store(p, v);
  }  // an input of products to come
};

// BF16 without an instruction for it: both halves widened, two fused multiply-adds.
template <class V>
struct ProductBF16 {
  static constexpr int kPerUnit = 2;
  static constexpr bool kOneInstruction = false;
  struct B {
    typename V::F even, odd;
  };
  static LLMQ_INLINE B load(const unsigned char* at) { return {V::even_bf16(at), V::odd_bf16(at)}; }
  static LLMQ_INLINE B broadcast(uint32_t unit) {
    return {V::set(float_from_bits(unit << 16)), V::set(float_from_bits(unit & 0xffff0000u))};
  }
  static LLMQ_INLINE typename V::F add(typename V::F acc, B a, B b) {
    return V::fma(a.odd, b.odd, V::fma(a.even, b.even, acc));
  }
  static LLMQ_INLINE void store(BFloat16* p, typename V::F v) { V::store_bf16(p, v); }
};

}  // namespace llmq
