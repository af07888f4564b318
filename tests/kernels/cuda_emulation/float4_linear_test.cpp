// Products of E2M1 by E2M1: the instruction as the host emulates it against its definition, with operands
// placed as CUTLASS places them; kernels/cuda/float4_linear.h and tensor_memory/float4_tensor_linear.h
// against sums in double; inputs as codes.
#include "kernels/cuda/float4_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "emulation_fixture.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/launch_emulated.h"
#include "kernels/cuda/launch_float4.h"
#include "kernels/cuda/round_inputs.h"

namespace llmq::cuda {
namespace {

using llmq::testing::gamma;
using llmq::testing::Numbers;

double scale_of(bool exponents, std::uint32_t byte) {
  return double{exponents ? power_of_two_at(byte) : to_float(Float8{static_cast<std::uint8_t>(byte)})};
}

// What one warp multiplies by one instruction.
struct WarpOperands {
  std::array<FragmentA, 32> a{};
  std::array<FragmentB, 32> b{};
  std::array<std::uint32_t, 32> a_scale{}, b_scale{};
  std::array<Sums, 32> d{};
};

template <bool kExponents>
struct OneInstruction {
  using Arguments = WarpOperands*;
  static constexpr int kThreads = 32;
  struct Shared {};
  static Grid grid(const Arguments&) { return {1}; }
  static void run(Block<kThreads>& block, const Arguments& a, Shared&) {
    const auto at = [](int t) { return static_cast<std::size_t>(t); };
    block.template multiply_float4<kExponents>(
        [&](int t) -> Sums& { return a->d[at(t)]; }, [&](int t) -> const FragmentA& { return a->a[at(t)]; },
        [&](int t) -> const FragmentB& { return a->b[at(t)]; }, [&](int t) { return a->a_scale[at(t)]; },
        [&](int t) { return a->b_scale[at(t)]; });
  }
};

// CUTLASS 4's layouts of SM120_16x8x64_TN_VS (cute/atom/mma_traits_sm120.hpp), from thread and value to
// row + rows * k: (shape):(stride) of A ((4,8),(8,2,2)):((128,1),(16,8,512)), of B
// ((4,8),(8,2)):((64,1),(8,256)), of A's scales ((2,2,8),64):((8,0,1),16), of B's ((4,8),64):((0,1),8).
template <bool kExponents>
void expect_instruction(int turned) {
  constexpr int kGroup = kExponents ? 32 : 16;
  Numbers numbers(kExponents ? 7 : 8);
  std::uint32_t a[16][64], b[8][64], a_scale[16][4], b_scale[8][4];
  const auto fill = [&](auto& codes, auto& scales) {
    for (auto& row : codes)
      for (std::uint32_t& code : row) code = static_cast<std::uint32_t>(numbers.below(16));
    for (auto& row : scales)
      for (std::uint32_t& byte : row)
        byte = static_cast<std::uint32_t>(kExponents ? 126 + numbers.below(3) : 0x30 + numbers.below(16));
  };
  fill(a, a_scale), fill(b, b_scale);
  WarpOperands operands;
  for (int lane = 0; lane < 32; ++lane) {
    const int placed = (lane + turned) % 32, t0 = placed % 4, t1 = placed / 4;
    const auto at = static_cast<std::size_t>(lane);
    for (int v = 0; v < 32; ++v) {
      const int place = 128 * t0 + t1 + 16 * (v % 8) + 8 * (v / 8 % 2) + 512 * (v / 16);
      operands.a[at].v[v / 8] |= a[place % 16][place / 16] << v % 8 * 4;
    }
    for (int v = 0; v < 16; ++v) {
      const int place = 64 * t0 + t1 + 8 * (v % 8) + 256 * (v / 8);
      operands.b[at].v[v / 8] |= b[place % 8][place / 8] << v % 8 * 4;
    }
    for (int i = 0; i < 64 / kGroup; ++i) {
      operands.a_scale[at] |= a_scale[placed % 2 * 8 + t1][i] << i * 8;
      operands.b_scale[at] |= b_scale[t1][i] << i * 8;
    }
  }
  for (Sums& own : operands.d)
    for (float& sum : own.v) sum = 3;
  emulate<OneInstruction<kExponents>>(&operands);
  int differing = 0;
  for (int lane = 0; lane < 32; ++lane)
    for (int e = 0; e < 4; ++e) {
      const int m = lane / 4 + e / 2 * 8, n = lane % 4 * 2 + e % 2;
      double sum = 3;
      for (int k = 0; k < 64; ++k)
        sum += double{e2m1_number(a[m][k])} * scale_of(kExponents, a_scale[m][k / kGroup]) *
               double{e2m1_number(b[n][k])} * scale_of(kExponents, b_scale[n][k / kGroup]);
      differing += double{operands.d[static_cast<std::size_t>(lane)].v[e]} != sum;
    }
  EXPECT_EQ(differing > 0, turned > 0) << turned << " lanes on: " << differing;
}

TEST(CudaFloat4, TheInstructionIsItsDefinition) {
  for (const int turned : {0, 1, 2, 4}) expect_instruction<false>(turned), expect_instruction<true>(turned);
}

struct Float4Case {
  std::int64_t rows, features, columns;
  bool exponents, bias;
};

// Codes and scale bytes of [rows, columns], every one that is a number, E4M3's zero and subnormals too.
struct Float4Side {
  std::vector<std::uint32_t> codes, bytes;  // [rows, columns], [rows, groups]
  double value(const Float4Case& c, std::int64_t row, std::int64_t k) const {
    const std::int64_t group = c.exponents ? 32 : 16, groups = (c.columns + group - 1) / group;
    return double{e2m1_number(codes[static_cast<std::size_t>(row * c.columns + k)])} *
           scale_of(c.exponents, bytes[static_cast<std::size_t>(row * groups + k / group)]);
  }
};

Float4Side make_side(const Float4Case& c, std::int64_t rows, Numbers& numbers) {
  const std::int64_t group = c.exponents ? 32 : 16, groups = (c.columns + group - 1) / group;
  Float4Side side;
  for (std::int64_t i = 0; i < rows * c.columns; ++i)
    side.codes.push_back(static_cast<std::uint32_t>(numbers.below(16)));
  for (std::int64_t i = 0; i < rows * groups; ++i)
    side.bytes.push_back(
        static_cast<std::uint32_t>(c.exponents ? 115 + numbers.below(24) : numbers.below(127)));
  return side;
}

// Words of scales, [words][stride].
AlignedWords scale_words(const Float4Case& c, const Float4Side& side, std::int64_t rows,
                         std::int64_t stride) {
  const std::int64_t groups = static_cast<std::int64_t>(side.bytes.size()) / rows;
  AlignedWords words;
  words.words.assign(
      static_cast<std::size_t>(words_of_scales(float4_layout(1, c.columns), c.exponents) * stride), 0);
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t g = 0; g < groups; ++g)
      words.words[static_cast<std::size_t>(g / 4 * stride + row)] |=
          side.bytes[static_cast<std::size_t>(row * groups + g)] << g % 4 * 8;
  return words;
}

void expect_product(Float4Launch launch, const Float4Case& c) {
  SCOPED_TRACE(fmt::format("{} by {} by {}, exponents {}", c.rows, c.features, c.columns, c.exponents));
  Numbers numbers(static_cast<std::uint64_t>(c.rows * 1009 + c.features * 31 + c.columns));
  const FragmentLayout layout = float4_layout(c.features, c.columns);
  const Float4Side x = make_side(c, c.rows, numbers), w = make_side(c, c.features, numbers);
  AlignedWords codes, weight;
  codes.words.assign(static_cast<std::size_t>(c.rows * layout.positions() / 8), 0);
  weight.words.assign(static_cast<std::size_t>(layout.words()), 0);
  for (std::int64_t k = 0; k < c.columns; ++k) {
    for (std::int64_t m = 0; m < c.rows; ++m)
      codes.words[static_cast<std::size_t>((m * layout.positions() + k) / 8)] |=
          x.codes[static_cast<std::size_t>(m * c.columns + k)] << FragmentLayout::nibble_shift(k % 8);
    for (std::int64_t n = 0; n < c.features; ++n) {
      const FragmentPlace place = layout.place(n, k);
      weight.words[static_cast<std::size_t>(place.word)] |=
          w.codes[static_cast<std::size_t>(n * c.columns + k)] << place.shift;
    }
  }
  const AlignedWords x_scales = scale_words(c, x, c.rows, padded_scales(c.rows)),
                     w_scales = scale_words(c, w, c.features, layout.padded_features());
  const std::vector<float> bias = numbers.values(c.features);
  const std::int64_t stride = c.features + 3;
  std::vector<float> y(static_cast<std::size_t>(c.rows * stride), 77);
  Float4Arguments a;
  a.y = y.data(), a.y_stride = stride;
  a.x = codes.words.data(), a.x_scales = x_scales.words.data();
  a.weight = weight.words.data(), a.weight_scales = w_scales.words.data();
  a.bias = c.bias ? bias.data() : nullptr;
  a.factor = 0.75f;
  a.rows = c.rows, a.features = c.features, a.positions = layout.positions();
  a.exponents = c.exponents;
  ASSERT_EQ(launch(a, nullptr), 0);
  for (std::int64_t m = 0; m < c.rows; ++m)
    for (std::int64_t n = 0; n < stride; ++n) {
      const double found = y[static_cast<std::size_t>(m * stride + n)];
      if (n >= c.features) {
        ASSERT_EQ(found, 77) << m << ", " << n;
        continue;
      }
      const double added = c.bias ? double{bias[static_cast<std::size_t>(n)]} : 0;
      double sum = 0, size = 0;
      for (std::int64_t k = 0; k < c.columns; ++k) {
        const double product = x.value(c, m, k) * w.value(c, n, k);
        sum += product, size += std::fabs(product);
      }
      // a rounding for each product, one behind
      const auto roundings = static_cast<double>(c.columns + 1);
      ASSERT_NEAR(found, 0.75 * sum + added, gamma(roundings) * (0.75 * size + std::fabs(added)))
          << m << ", " << n;
    }
}

void expect_products(Float4Launch launch) {
  for (const bool exponents : {false, true}) {
    for (const std::int64_t columns : {1, 15, 17, 32, 63, 64, 65, 96, 127, 128, 129, 200, 385})
      expect_product(launch, {5, 70, columns, exponents, columns % 2 == 0});
    for (const std::int64_t rows : {1, 2, 15, 16, 17, 33, 63, 64, 65, 130})
      expect_product(launch, {rows, 33, 150, exponents, rows % 2 == 0});
    for (const std::int64_t features : {1, 7, 8, 16, 31, 64, 65, 127, 128, 129, 200})
      expect_product(launch, {18, features, 130, exponents, features % 2 == 0});
  }
}

TEST(CudaFloat4, AgreesWithDouble) { expect_products(emulate_float4); }
TEST(CudaFloat4, AgreesWithDoubleFromTensorMemory) { expect_products(emulate_float4_tensor); }

// Codes times levels are what inputs become beside codes as numbers; padding is 0.
TEST(CudaRoundInputs, CodesAndBytesAreTheNumbersOfTheHost) {
  for (const InputGroups how :
       {InputGroups{16, false, true, false, 900.0f}, InputGroups{16, false, true, true, 0x1p-9f},
        InputGroups{32, false, false, false, 1}})
    for (const std::int64_t columns : {std::int64_t{96}, std::int64_t{75}, std::int64_t{201}}) {
      const std::int64_t rows = 5, padded_rows = padded_scales(rows);
      const FragmentLayout layout = float4_layout(1, columns);
      const std::int64_t groups = layout.positions() / how.size;
      Numbers numbers(static_cast<std::uint64_t>(columns + how.size));
      std::vector<float> x = numbers.values(rows * columns, 3);
      x[static_cast<std::size_t>(2 * columns + 70)] = HUGE_VALF;
      std::fill_n(x.begin() + 3 * columns, how.size, 0.0f);
      std::vector<std::uint32_t> codes(static_cast<std::size_t>(rows * layout.positions() / 8), ~0u),
          scales(static_cast<std::size_t>(words_of_scales(layout, !how.two_levels) * padded_rows), ~0u);
      RoundInputCodes a;
      a.elements = rows * groups, a.groups = groups, a.columns = columns, a.padded_rows = padded_rows;
      a.x = {x.data(), columns, Element::kF32}, a.how = how, a.codes = codes.data();
      a.scale_bytes = reinterpret_cast<std::uint8_t*>(scales.data());
      emulate<Each<RoundInputCodes>>(a);
      for (std::int64_t m = 0; m < rows; ++m)
        for (std::int64_t first = 0; first < layout.positions(); first += how.size) {
          std::vector<float> group(static_cast<std::size_t>(how.size), 0.0f);
          const auto count = static_cast<int>(std::clamp<std::int64_t>(columns - first, 0, how.size));
          std::copy_n(x.begin() + m * columns + (count > 0 ? first : 0), count, group.begin());
          round_input_group(how, group.data(), count);
          const std::int64_t g = first / how.size;
          const std::uint32_t byte =
              scales[static_cast<std::size_t>(g / 4 * padded_rows + m)] >> g % 4 * 8 & 0xff;
          const bool lost = m == 2 && first <= 70 && 70 < first + count;
          EXPECT_EQ(byte == (how.two_levels ? 0x7fu : 0xffu), lost);
          for (std::int64_t k = 0; k < how.size && !lost; ++k) {
            const std::int64_t at = m * layout.positions() + first + k;
            const std::uint32_t code =
                codes[static_cast<std::size_t>(at / 8)] >> FragmentLayout::nibble_shift(at % 8) & 15;
            ASSERT_EQ(double{e2m1_number(code)} * scale_of(!how.two_levels, byte),
                      group[static_cast<std::size_t>(k)])
                << m << ", " << first + k;
          }
        }
    }
}

}  // namespace
}  // namespace llmq::cuda
