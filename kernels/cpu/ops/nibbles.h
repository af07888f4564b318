// Products of INT8 rows with codes of 4 bits that stay so (src/device/low_precision.h has the arithmetic,
// narrow_codes.h the bytes):
//
//   S_g = sum over group g of a[k] (code[k] - zero), exact in INT32
//   y   = S_0 scale_0; for g = 1 .. in order: y = fma(S_g, scale_g, y)
//   c   = y f, or fma(y, f, bias);   f of the row
//
// Integer sums have no order and what follows them has one, so the bits are the same at every level and for
// any number of rows. A load, a shift and two masks give 8 codes of each lane; without an instruction that
// adds four products to an INT32, sums of as many words as an INT16 holds (Product::kNibbleWords) stay there.
#pragma once
#include "kernels/cpu/ops/codes.h"
#include "kernels/cpu/ops/narrow_codes.h"

namespace llmq {

// The codes of V::kLanes words, one word each: code i of four in byte i.
template <class V>
struct NibbleQuads {
  typename V::I first, second;
  static LLMQ_INLINE NibbleQuads load(const unsigned char* words) {
    constexpr int kNibbles = 0x0f0f0f0f;
    const auto both = V::loadi(words);
    return {V::template field<0, kNibbles>(both), V::template field<4, kNibbles>(both)};
  }
};

// What follows the sums of V::kLanes columns, from column n of a panel on, of a group.
template <class V>
struct NibbleGroupEnd {
  typename V::F scale;
  typename V::I zero;
  bool zeros;
  LLMQ_INLINE NibbleGroupEnd(const NarrowLayout& layout, const unsigned char* group, int64_t n)
      : scale(narrow_number<V>(group, layout.scales, n)), zero(V::zeroi()), zeros(layout.zeros) {
    constexpr int64_t kPanel = V::kPanelVectors * V::kLanes;
    if (zeros) zero = V::load_u8(group + layout.header_bytes(kPanel) - kPanel + n);
  }
  // y after the group: `sum` of codes times inputs, `inputs` the sum of the row's own codes.
  LLMQ_INLINE typename V::F apply(typename V::I sum, int32_t inputs, typename V::F y, bool first) const {
    const auto less = zeros ? V::muli(zero, V::seti(inputs)) : V::seti(inputs * narrow_middle(4));
    const auto exact = V::to_f32(V::subi(sum, less));
    return first ? V::mul(exact, scale) : V::fma(exact, scale, y);
  }
};

// c of V::kLanes columns of one row, from column n on.
template <class V>
LLMQ_INLINE void store_nibble_sums(const NibbleProduct& p, int64_t row, int64_t n, typename V::F y) {
  const int64_t left = p.columns - n;
  const int count = static_cast<int>(left < 0 ? 0 : left > V::kLanes ? V::kLanes : left);
  const auto factor = V::set(p.factors[row]);
  float* const c = p.c + row * p.c_row + n;
  if (count == V::kLanes)
    V::store(c, p.bias == nullptr ? V::mul(y, factor) : V::fma(y, factor, V::load(p.bias + n)));
  else if (count > 0)
    V::store_first(
        c, p.bias == nullptr ? V::mul(y, factor) : V::fma(y, factor, V::load_first(p.bias + n, count)),
        count);
}

// Rows rows from first_row on against one panel.
template <class V, class Product, int Rows>
__attribute__((noinline)) void nibble_tile(const NibbleProduct& p, int64_t panel, int64_t first_row) {
  constexpr int kVectors = V::kPanelVectors;
  constexpr int64_t kPanel = kVectors * V::kLanes;
  // With few rows, enough sums under way that an instruction's latency does not set the pace.
  constexpr int kWays = Product::kOneInstruction && Rows <= 4 ? 2 : 1;
  constexpr int64_t kAhead = 2048;  // bytes, as the packed product asks for lines (narrow.h)
  const NarrowLayout& layout = p.layout;
  const int64_t header = layout.header_bytes(kPanel), row = p.a_row;
  const unsigned char* group = p.b + panel * layout.panel_bytes(kPanel);
  const unsigned char* base[(Rows + 2) / 3];  // rows in threes, as gemm_tile has them
  unroll<(Rows + 2) / 3>([&](auto i) LLMQ_LAMBDA_INLINE {
    base[decltype(i)::value] = p.a + (first_row + decltype(i)::value * 3) * row;
  });
  typename V::F y[Rows][kVectors];
  const auto each = [&](const auto& body) LLMQ_LAMBDA_INLINE {
    unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE {
      unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE { body(decltype(r)::value, decltype(v)::value); });
    });
  };
  each([&](int r, int v) LLMQ_LAMBDA_INLINE { y[r][v] = V::set(0.0f); });
  // Typed as what adds to them: of another vector type gcc keeps every one twice.
  using Parts = typename Product::Nibbles[Rows][kVectors][kWays];
  const auto each_part = [&](const auto& body) LLMQ_LAMBDA_INLINE {
    each([&](int r, int v) LLMQ_LAMBDA_INLINE {
      unroll<kWays>([&](auto way) LLMQ_LAMBDA_INLINE { body(r, v, decltype(way)::value); });
    });
  };
  // Adds the products of the words up to `end`.
  const auto add = [&](Parts& parts, const unsigned char*& words,
                       const unsigned char* end) LLMQ_LAMBDA_INLINE {
    do {
      for (int64_t line = 0; line < 4 * kPanel; line += 64) __builtin_prefetch(words + kAhead + line);
      NibbleQuads<V> quads[kVectors];
      unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
        quads[decltype(v)::value] = NibbleQuads<V>::load(words + decltype(v)::value * V::kLanes * 4);
      });
      unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE {
        constexpr int kR = decltype(r)::value;
        const unsigned char* const a = base[kR / 3] + (kR % 3) * row;
        const auto first = V::seti(static_cast<int>(whole_unit(a))),
                   second = V::seti(static_cast<int>(whole_unit(a + 4)));
        unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
          constexpr int kV = decltype(v)::value;
          auto &even = parts[kR][kV][0], &odd = parts[kR][kV][kWays - 1];
          even = Product::add_nibbles(even, first, quads[kV].first);
          odd = Product::add_nibbles(odd, second, quads[kV].second);
        });
      });
      unroll<(Rows + 2) / 3>([&](auto i) LLMQ_LAMBDA_INLINE { base[decltype(i)::value] += kNarrowBlock; });
      words += 4 * kPanel;
    } while (words != end);
  };
  for (int64_t g = 0; g < layout.groups; ++g) {
    const unsigned char* words = group + header;
    const unsigned char* const end_of_group = words + layout.group / kNarrowBlock * 4 * kPanel;
    typename V::I sums[Rows][kVectors];
    each([&](int r, int v) LLMQ_LAMBDA_INLINE { sums[r][v] = V::zeroi(); });
    constexpr int64_t kMost = Product::kNibbleWords * 4 * kPanel;  // bytes; 0: all
    do {
      Parts parts;
      each_part([&](int r, int v, int way)
                    LLMQ_LAMBDA_INLINE { parts[r][v][way] = typename Product::Nibbles{}; });
      add(parts, words, kMost == 0 || end_of_group - words < kMost ? end_of_group : words + kMost);
      each_part([&](int r, int v, int way) LLMQ_LAMBDA_INLINE {
        sums[r][v] = V::addi(sums[r][v], Product::whole(parts[r][v][way]));
      });
    } while (kMost != 0 && words != end_of_group);
    unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
      constexpr int kV = decltype(v)::value;
      const NibbleGroupEnd<V> end(layout, group, kV * V::kLanes);
      unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE {
        constexpr int kR = decltype(r)::value;
        y[kR][kV] = end.apply(sums[kR][kV], p.sums[(first_row + kR) * p.sums_row + g], y[kR][kV], g == 0);
      });
    });
    group = words;
  }
  each([&](int r, int v) LLMQ_LAMBDA_INLINE {
    store_nibble_sums<V>(p, first_row + r, panel * kPanel + v * V::kLanes, y[r][v]);
  });
}

// Rows rows at a time, then fewer.
template <class V, class Product, int Rows>
LLMQ_INLINE void nibble_rows(const NibbleProduct& p, int64_t panel, int64_t first_row) {
  for (; first_row + Rows <= p.rows; first_row += Rows) nibble_tile<V, Product, Rows>(p, panel, first_row);
  if constexpr (Rows > 1)
    if (first_row < p.rows) nibble_rows<V, Product, (Rows > 8 ? 8 : Rows / 2)>(p, panel, first_row);
}

// Rows that share one expansion of the codes: sums of INT16 want a register each beside the codes and their
// product, and lanes that are plain C++ take long to compile for more than one row.
template <class V, class Product>
inline constexpr int kNibbleRows = V::kLanes == 1             ? 1
                                   : Product::kOneInstruction ? V::kRowTile
                                                              : V::kRowTile * 2 / 3;

template <class V, class Product>
void nibble_gemm(const NibbleProduct& p) {
  constexpr int64_t kPanel = V::kPanelVectors * V::kLanes;
  for (int64_t panel = 0; panel * kPanel < p.columns; ++panel)
    nibble_rows<V, Product, kNibbleRows<V, Product>>(p, panel, 0);
}

}  // namespace llmq
