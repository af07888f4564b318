// kernels/cuda/linear.h against sums in double: forms of weights, odd sizes, odd groups, mixed magnitudes;
// rows alone and together, in blocks of every shape.
#include "kernels/cuda/start_linear.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "emulation_fixture.h"
#include "kernels/cuda/launch_emulated.h"
#include "kernels/cuda/pack_fragments.h"

namespace llmq::cuda {
namespace {

using llmq::testing::Numbers;

struct Case {
  WeightForm form;
  int64_t rows, features, columns, group;
  bool zeros, bias;
  int64_t row_scales;  // 0, 1, or groups where more
  int64_t spare = 0;   // of x's rows: 8 keeps them aligned
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << "form " << static_cast<int>(c.form) << ", " << c.rows << "x" << c.features << "x" << c.columns
       << ", group " << c.group;
}

struct Problem {
  Case c;
  AlignedWords x, weight;              // x as the kernel takes it
  std::vector<double> inputs, values;  // [rows, columns], [features, columns] without scale
  std::vector<float> scale, zero, bias, row_scale;
  std::vector<uint16_t> scale_bytes;
  std::vector<int32_t> row_sum;
  LinearArguments arguments;
};

double code_as_value(const Case& c, uint32_t code, float zero) {
  constexpr double kFloat4[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  if (c.form == WeightForm::kFloat4) return code < 8 ? kFloat4[code] : -kFloat4[code - 8];
  return c.form == WeightForm::kFloat8 ? static_cast<double>(to_float(Float8{static_cast<uint8_t>(code)}))
                                       : code - static_cast<double>(zero);
}

// `zeros` of a case: scales are exponents, around 1 and at times 2^-127, else E4M3 over 1.37, every one of
// them, zero and subnormal ones too.
ScaleOfByte scale_of_byte(const Case& c) { return c.zeros ? scale_of_exponent() : scale_of_level(1 / 1.37f); }

void make_scale_bytes(Problem& p, std::size_t count, Numbers& numbers) {
  p.scale_bytes.assign(count / 2, 0);
  for (std::size_t i = 0; i < count; ++i) {
    const auto byte = static_cast<uint8_t>(!p.c.zeros              ? numbers.below(127)
                                           : numbers.below(9) == 0 ? 0
                                                                   : 120 + numbers.below(14));
    p.scale.push_back(p.c.zeros ? power_of_two_at(byte) : to_float(Float8{byte}) * (1 / 1.37f));
    p.scale_bytes[i / 2] = static_cast<uint16_t>(p.scale_bytes[i / 2] | byte << i % 2 * 8);
  }
}

void make_weight(Problem& p, Numbers& numbers) {
  const Case& c = p.c;
  const FragmentLayout layout = fragment_layout(c.form, c.features, c.columns, c.group);
  const bool dense = c.form == WeightForm::kBFloat16;
  if (!dense) {
    const int64_t count = layout.groups() * layout.padded_features();
    if (c.form == WeightForm::kFloat4)
      make_scale_bytes(p, static_cast<std::size_t>(count), numbers);
    else
      p.scale = numbers.values(count, 10);
    for (std::size_t i = 0; i < p.scale.size(); ++i)
      p.zero.push_back(
          c.form == WeightForm::kFloat8 || c.form == WeightForm::kFloat4
              ? 0.0f
              : static_cast<float>(c.zeros ? numbers.below(1 << layout.bits) : 1 << (layout.bits - 1)));
  }
  p.weight.words.assign(static_cast<std::size_t>(layout.words()), 0);
  for (int64_t n = 0; n < c.features; ++n)
    for (int64_t k = 0; k < c.columns; ++k) {
      const FragmentPlace place = layout.place(n, k);
      uint32_t code = 0;
      if (dense) {
        code = to_bfloat16(numbers.values(1, 8)[0]).bits;
        p.values.push_back(to_float(BFloat16{static_cast<uint16_t>(code)}));
      } else {
        code = static_cast<uint32_t>(numbers.below(1 << layout.bits));
        if (c.form == WeightForm::kFloat8 && code % 128 == 127) code = 0x7e;
        p.values.push_back(code_as_value(
            c, code, p.zero[static_cast<std::size_t>(k / layout.group * layout.padded_features() + n)]));
        if (c.form == WeightForm::kInt8) code ^= 0x80;
      }
      p.weight.words[static_cast<std::size_t>(place.word)] |= code << place.shift;
    }
}

void make_inputs(Problem& p, Numbers& numbers) {
  const Case& c = p.c;
  const FragmentLayout layout = fragment_layout(c.form, c.features, c.columns, c.group);
  const bool integer = c.form == WeightForm::kInt8;
  const int64_t stride = (integer ? layout.positions() : c.columns + c.spare);
  // NaN where nobody may look
  p.x.words.assign(static_cast<std::size_t>(c.rows * stride / (integer ? 4 : 2) + 1), 0x7fc07fc0u);
  if (integer) std::fill(p.x.words.begin(), p.x.words.end(), 0);
  p.row_sum.assign(static_cast<std::size_t>(c.rows * layout.groups()), 0);
  auto* const bytes = reinterpret_cast<unsigned char*>(p.x.words.data());
  for (int64_t m = 0; m < c.rows; ++m)
    for (int64_t k = 0; k < c.columns; ++k) {
      if (integer) {
        const auto a = static_cast<int8_t>(numbers.below(256) - 128);
        bytes[m * stride + layout.position(k)] = static_cast<unsigned char>(a);
        p.inputs.push_back(a);
        p.row_sum[static_cast<std::size_t>(m * layout.groups() + k / layout.group)] += a;
      } else {
        const BFloat16 h = to_bfloat16(numbers.values(1, 8)[0]);
        std::memcpy(bytes + 2 * (m * stride + k), &h, 2);
        p.inputs.push_back(to_float(h));
      }
    }
  p.arguments.x = bytes;
  p.arguments.x_stride = stride;
}

Problem make(const Case& c) {
  Numbers numbers(
      static_cast<std::uint64_t>(c.rows * 1000003 + c.features * 1009 + c.columns * 31 + c.group));
  Problem p;
  p.c = c;
  make_weight(p, numbers);
  make_inputs(p, numbers);
  p.bias = numbers.values(c.features);
  p.row_scale = numbers.values(c.rows * c.row_scales, 4);
  return p;
}

// The arguments of rows [first, first + count).
LinearArguments arguments(const Problem& p, int64_t first, int64_t count, std::vector<float>& y) {
  const Case& c = p.c;
  LinearArguments a = p.arguments;
  y.assign(static_cast<std::size_t>(count * c.features), std::nanf(""));
  a.y = y.data(), a.y_stride = c.features;
  a.x = static_cast<const unsigned char*>(a.x) + first * a.x_stride * (c.form == WeightForm::kInt8 ? 1 : 2);
  a.weight = p.weight.words.data();
  a.scale = p.scale.empty() || !p.scale_bytes.empty() ? nullptr : p.scale.data();
  a.scale_bytes = p.scale_bytes.empty() ? nullptr : p.scale_bytes.data();
  a.scale_of_byte = scale_of_byte(c);
  a.zero = (c.form == WeightForm::kInt8 && !c.zeros) || a.scale_bytes != nullptr ? nullptr : p.zero.data();
  a.bias = c.bias ? p.bias.data() : nullptr;
  a.row_scale = p.row_scale.data() + first * c.row_scales;
  a.row_sum = p.row_sum.data() + first * fragment_layout(c.form, c.features, c.columns, c.group).groups();
  a.rows = count, a.features = c.features, a.columns = c.columns, a.group = c.group,
  a.row_scales = c.row_scales;
  return with_layout(a, c.form);
}

enum class TileShape { kNarrow, kLow, kMiddle, kTall, kGathered };

template <WeightForm kForm>
void emulate_form(const LinearArguments& a, TileShape shape) {
  switch (shape) {
    case TileShape::kNarrow:
      return emulate<MmaLinear<kForm, kNarrow>>(a);
    case TileShape::kLow:
      return emulate<MmaLinear<kForm, kLow>>(a);
    case TileShape::kMiddle:
      return emulate<MmaLinear<kForm, kMiddle>>(a);
    case TileShape::kTall:
      return emulate<MmaLinear<kForm, tall_shape(kForm)>>(a);
    case TileShape::kGathered:
      if constexpr (kForm != WeightForm::kInt8) emulate<MmaLinear<kForm, kGathered>>(a);
  }
}

std::vector<float> run_linear(const Problem& p, int64_t first, int64_t count, TileShape shape) {
  std::vector<float> y;
  const LinearArguments a = arguments(p, first, count, y);
  switch (p.c.form) {
    case WeightForm::kBFloat16:
      emulate_form<WeightForm::kBFloat16>(a, shape);
      break;
    case WeightForm::kCodes4:
      emulate_form<WeightForm::kCodes4>(a, shape);
      break;
    case WeightForm::kCodes8:
      emulate_form<WeightForm::kCodes8>(a, shape);
      break;
    case WeightForm::kFloat4:
      emulate_form<WeightForm::kFloat4>(a, shape);
      break;
    case WeightForm::kFloat8:
      emulate_form<WeightForm::kFloat8>(a, shape);
      break;
    case WeightForm::kInt8:
      emulate_form<WeightForm::kInt8>(a, shape);
      break;
  }
  return y;
}

// That can compute these rows; the tall one only where the emulation is done within seconds.
std::vector<TileShape> shapes_for(const Problem& p, int64_t first, int64_t count) {
  std::vector<float> y;
  const LinearArguments a = arguments(p, first, count, y);
  std::vector<TileShape> shapes;
  if (p.c.form != WeightForm::kInt8) shapes.push_back(TileShape::kGathered);
  if (!a.x_aligned) return shapes;
  shapes.insert(shapes.end(), {TileShape::kNarrow, TileShape::kLow, TileShape::kMiddle});
  if ((a.groups == 1 || !tall_shape(p.c.form).one_group) && a.columns <= 700)
    shapes.push_back(TileShape::kTall);
  return shapes;
}

// In double, and the sum of magnitudes that bounds FP32's error.
void expect_close(const Problem& p, const std::vector<float>& y) {
  const Case& c = p.c;
  const FragmentLayout layout = fragment_layout(c.form, c.features, c.columns, c.group);
  std::vector<double> want, bound;
  for (int64_t m = 0; m < c.rows; ++m)
    for (int64_t n = 0; n < c.features; ++n) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < c.columns; ++k) {
        const int64_t g = k / layout.group;
        const double scale =
            p.scale.empty() ? 1.0 : p.scale[static_cast<std::size_t>(g * layout.padded_features() + n)];
        const double row =
            c.row_scales == 0
                ? 1.0
                : p.row_scale[static_cast<std::size_t>(m * c.row_scales + (c.row_scales > 1 ? g : 0))];
        const double term = p.inputs[static_cast<std::size_t>(m * c.columns + k)] *
                            p.values[static_cast<std::size_t>(n * c.columns + k)] * scale * row;
        sum += term, magnitude += std::fabs(term);
      }
      if (c.bias)
        sum += p.bias[static_cast<std::size_t>(n)],
            magnitude += std::fabs(p.bias[static_cast<std::size_t>(n)]);
      want.push_back(sum);
      // Products and their sums, the groups' scales (2 roundings each) and sums, the row's scale, the bias.
      bound.push_back(llmq::testing::fp32_dot_bound(c.columns + 3 * layout.groups() + 2, magnitude));
    }
  EXPECT_EQ(llmq::testing::outside(y, want, bound), "");
}

class CudaLinear : public ::testing::TestWithParam<Case> {};

TEST_P(CudaLinear, AgreesWithDoubleInEveryShapeAtAnyNumberOfRows) {
  const Problem p = make(GetParam());
  const std::vector<TileShape> shapes = shapes_for(p, 0, p.c.rows);
  const std::vector<float> first = run_linear(p, 0, p.c.rows, shapes.front());
  expect_close(p, first);
  for (const TileShape shape : shapes)
    EXPECT_TRUE(llmq::testing::same_bits(first, run_linear(p, 0, p.c.rows, shape)))
        << "shape " << static_cast<int>(shape);
  for (const int64_t row : {int64_t{0}, p.c.rows / 2, p.c.rows - 1}) {
    const std::vector<float> alone = run_linear(p, row, 1, shapes_for(p, row, 1).back());
    const auto at = first.begin() + static_cast<std::ptrdiff_t>(row * p.c.features);
    EXPECT_TRUE(llmq::testing::same_bits(
        alone, std::vector<float>(at, at + static_cast<std::ptrdiff_t>(p.c.features))));
  }
}

constexpr WeightForm kBf16 = WeightForm::kBFloat16, kC4 = WeightForm::kCodes4, kC8 = WeightForm::kCodes8,
                     kF4 = WeightForm::kFloat4, kF8 = WeightForm::kFloat8, kI8 = WeightForm::kInt8;
INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaLinear,
    ::testing::Values(
        // form, rows, features, columns, group, zeros, bias, scales of a row, spare
        Case{kBf16, 1, 1, 1, 1, false, false, 0}, Case{kBf16, 18, 70, 328, 328, false, true, 0, 8},
        Case{kBf16, 5, 65, 37, 37, false, true, 0}, Case{kBf16, 65, 16, 128, 128, false, false, 0, 3},
        Case{kBf16, 19, 70, 96, 96, false, true, 1},  // of inputs as floats in groups
        Case{kC4, 3, 66, 192, 64, true, true, 0}, Case{kC4, 17, 20, 96, 32, true, false, 0, 8},
        Case{kC4, 2, 9, 80, 16, false, true, 0}, Case{kC4, 4, 30, 77, 33, true, true, 0},
        Case{kC4, 2, 12, 100, 100, true, false, 0}, Case{kC8, 19, 67, 256, 128, true, true, 0},
        Case{kC8, 3, 8, 50, 5, true, false, 0}, Case{kF8, 18, 24, 300, 128, false, true, 3},
        // of E2M1 `zeros` are exponents (scale_of_byte()); inputs of 16 bits, as floats in groups
        Case{kF4, 1, 1, 16, 16, false, false, 0}, Case{kF4, 7, 66, 208, 16, false, true, 0},
        Case{kF4, 16, 70, 77, 16, false, true, 0}, Case{kF4, 33, 20, 96, 32, true, false, 0, 8},
        Case{kF4, 4, 30, 77, 32, true, true, 1}, Case{kF4, 19, 70, 96, 16, false, true, 1},
        Case{kF8, 5, 66, 144, 144, false, true, 1}, Case{kF8, 2, 10, 64, 64, false, false, 0},
        Case{kI8, 20, 66, 200, 200, false, true, 1}, Case{kI8, 5, 17, 130, 32, true, true, 1},
        Case{kI8, 3, 9, 70, 5, true, false, 1},
        // Blocks of every shape beside one another, and groups that end within a span
        Case{kBf16, 131, 300, 200, 200, false, true, 0}, Case{kC4, 131, 200, 256, 128, true, true, 0},
        Case{kC4, 3, 70, 240, 48, true, false, 0, 8}, Case{kC8, 130, 150, 192, 32, true, true, 0},
        Case{kF4, 131, 200, 256, 16, false, true, 0}, Case{kF4, 130, 150, 192, 32, true, true, 1},
        Case{kF8, 129, 270, 104, 104, false, true, 1}, Case{kI8, 129, 270, 136, 136, true, true, 1},
        Case{kI8, 3, 70, 320, 160, false, false, 1},
        // Places of the longest rings are taken twice and more: 24, 21, 21 and 15 spans
        // of 64 columns
        Case{kC4, 2, 20, 3200, 64, true, false, 0, 8}, Case{kC8, 3, 9, 2880, 120, true, false, 0},
        Case{kF4, 2, 20, 3200, 16, false, false, 0, 8}, Case{kF4, 3, 9, 2912, 32, true, true, 0},
        Case{kF8, 2, 20, 2880, 2880, false, false, 1}, Case{kI8, 2, 20, 3300, 96, true, false, 1},
        Case{kBf16, 2, 20, 2048, 2048, false, false, 0}));

// Which shape computes is chosen by rows, features and what a block may have; forms and odd rows are held to
// theirs.
TEST(CudaLinear, ShapesAreChosenByWhatIsAsked) {
  const auto chosen = [](WeightForm form, int64_t rows, int64_t features, int64_t columns, int64_t group,
                         int64_t most_shared) {
    LinearArguments a;
    a.rows = rows, a.features = features, a.columns = columns, a.group = group, a.x_stride = columns;
    std::string shape;
    start_linear(form, a, most_shared, [&]<class Kernel>(const LinearArguments&) {
      shape = std::to_string(Kernel::kRows) + "x" + std::to_string(Kernel::kFeatures);
      return 0;
    });
    return shape;
  };
  constexpr int64_t kHopper = 227 * 1024, kTuring = 64 * 1024;  // of a block, with asking
  EXPECT_EQ(chosen(kBf16, 4096, 5120, 5120, 5120, kHopper), "128x256");
  EXPECT_EQ(chosen(kC4, 4096, 5120, 5120, 128, kHopper), "128x128");
  EXPECT_EQ(chosen(kF4, 4096, 5120, 5120, 16, kHopper), "128x128");
  EXPECT_EQ(chosen(kI8, 4096, 5120, 5120, 5120, kHopper), "128x256");
  EXPECT_EQ(chosen(kI8, 4096, 5120, 5120, 128, kHopper), "64x64");
  EXPECT_EQ(chosen(kBf16, 4096, 5120, 5120, 5120, kTuring), "64x64");
  EXPECT_EQ(chosen(kBf16, 4096, 5120, 5121, 5121, kHopper), "16x64");
  EXPECT_EQ(chosen(kC4, 64, 5120, 5120, 128, kHopper), "64x64");
  EXPECT_EQ(chosen(kC4, 16, 5120, 5120, 128, kHopper), "16x32");
  EXPECT_EQ(chosen(kC4, 16, 5120, 5120, 128, kTuring), "16x64");
  EXPECT_EQ(chosen(kC4, 1, 25600, 5120, 128, kHopper), "16x64");
}

// Sums of INT8 products have no rounding at all: what is left is the arithmetic of device/low_precision.h,
// bit for bit.
TEST(CudaLinear, IntegerSumsAreExact) {
  const Problem p = make({kI8, 3, 10, 33 * 3, 33, true, true, 1});
  std::vector<float> want;
  for (int64_t m = 0; m < 3; ++m)
    for (int64_t n = 0; n < 10; ++n) {
      float y = 0;
      for (int64_t g = 0; g < 3; ++g) {
        double sum = 0;
        for (int64_t k = g * 33; k < g * 33 + 33; ++k)
          sum +=
              p.inputs[static_cast<std::size_t>(m * 99 + k)] * p.values[static_cast<std::size_t>(n * 99 + k)];
        y = fmaf(static_cast<float>(sum), p.scale[static_cast<std::size_t>(g * 64 + n)], y);
      }
      want.push_back(fmaf(y, p.row_scale[static_cast<std::size_t>(m)], p.bias[static_cast<std::size_t>(n)]));
    }
  EXPECT_TRUE(llmq::testing::same_bits(run_linear(p, 0, 3, TileShape::kMiddle), want));
}

// Every code's number and every byte's scale are those of FP32, bit for bit.
TEST(CudaLinear, CodesOfE2m1AndBytesOfScalesAreTheirNumbers) {
  constexpr int64_t kColumns = 16;
  const FragmentLayout layout = fragment_layout(kF4, 256, kColumns, kColumns);
  AlignedWords weight, x;
  weight.words.assign(static_cast<std::size_t>(layout.words()), 0);
  std::vector<uint16_t> bytes;
  for (int64_t n = 0; n < 256; ++n)
    for (int64_t k = 0; k < kColumns; ++k)  // column k has code k everywhere
      weight.words[static_cast<std::size_t>(layout.place(n, k).word)] |= static_cast<uint32_t>(k)
                                                                         << layout.place(n, k).shift;
  for (int n = 0; n < 256; n += 2) bytes.push_back(static_cast<uint16_t>(n | (n + 1) << 8));
  x.words.assign(kColumns * kColumns / 2, 0);  // the identity: row k asks for code k
  for (uint32_t k = 0; k < kColumns; ++k) x.words[k * kColumns / 2 + k / 2] = 0x3f80u << k % 2 * 16;
  for (const bool exponents : {false, true}) {
    std::vector<float> y(kColumns * 256);
    LinearArguments a;
    a.y = y.data(), a.y_stride = 256, a.x = x.words.data(), a.x_stride = kColumns;
    a.weight = weight.words.data(), a.scale_bytes = bytes.data();
    a.scale_of_byte = exponents ? scale_of_exponent() : scale_of_level(0x1p-3f);
    a.rows = kColumns, a.features = 256, a.columns = kColumns, a.group = kColumns;
    emulate<MmaLinear<kF4, kLow>>(with_layout(a, kF4));
    for (uint32_t k = 0; k < kColumns; ++k)
      for (uint32_t byte = 0; byte < (exponents ? 255u : 127u); ++byte) {
        const float scale =
            exponents ? power_of_two_at(byte) : to_float(Float8{static_cast<uint8_t>(byte)}) * 0x1p-3f;
        ASSERT_EQ(y[k * 256 + byte],
                  static_cast<float>(code_as_value({kF4, 0, 0, 0, 0, false, false, 0}, k, 0)) * scale)
            << k << " " << byte;
        ASSERT_EQ(e2m1_number(k),
                  static_cast<float>(code_as_value({kF4, 0, 0, 0, 0, false, false, 0}, k, 0)));
      }
  }
}

TEST(CudaPackFragments, PutsEveryElementInItsPlace) {
  Numbers numbers(5);
  for (const FragmentLayout& layout : {FragmentLayout{70, 130, 130, 4, 16}, FragmentLayout{17, 99, 33, 8, 32},
                                       FragmentLayout{5, 64, 16, 16, 16}}) {
    PackFragments::Arguments a;
    std::vector<uint32_t> words(static_cast<std::size_t>(layout.words()), 0xffffffffu), want(words.size(), 0);
    std::vector<uint16_t> wide;
    std::vector<uint8_t> narrow;
    const uint32_t flip = layout.product_depth == 32 ? 0x80 : 0;
    for (int64_t n = 0; n < layout.features; ++n)
      for (int64_t k = 0; k < layout.columns; ++k) {
        const auto code = static_cast<uint32_t>(numbers.below(int64_t{1} << layout.bits));
        wide.push_back(static_cast<uint16_t>(code)), narrow.push_back(static_cast<uint8_t>(code));
        want[static_cast<std::size_t>(layout.place(n, k).word)] |= (code ^ flip) << layout.place(n, k).shift;
      }
    a.words = words.data(), a.layout = layout, a.flip = flip;
    if (layout.bits == 16)
      a.wide = wide.data();
    else
      a.narrow = narrow.data();
    emulate<PackFragments>(a);
    EXPECT_EQ(words, want);
  }
}

TEST(FragmentLayout, HasOnePlacePerElement) {
  for (const FragmentLayout& layout : {FragmentLayout{70, 130, 130, 4, 16}, FragmentLayout{16, 99, 33, 8, 16},
                                       FragmentLayout{5, 64, 16, 16, 16}, FragmentLayout{65, 70, 5, 8, 32}}) {
    std::vector<bool> taken(static_cast<std::size_t>(layout.words() * 32));
    for (int64_t n = 0; n < layout.features; ++n)
      for (int64_t k = 0; k < layout.columns; ++k) {
        const FragmentPlace place = layout.place(n, k);
        const auto at = static_cast<std::size_t>(place.word * 32 + place.shift);
        ASSERT_LT(at, taken.size());
        ASSERT_FALSE(taken[at]) << n << " " << k;
        taken[at] = true;
        const FragmentElement back = layout.element(place.word, place.shift / layout.bits);
        EXPECT_EQ(back.feature, n);
        EXPECT_EQ(back.position, layout.position(k));
      }
  }
}

}  // namespace
}  // namespace llmq::cuda
