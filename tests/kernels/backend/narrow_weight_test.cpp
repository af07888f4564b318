// Weights that stay in few bits, on every backend: within the bound of the sum against the FP64 oracle, in
// float32 compute the very bits of the dequantized weight, and one row's bits whatever comes with it.
#include "backend_fixture.h"
#include "tensor/block_scales.h"
#include "tensor/ggml_blocks.h"
#include "tensor/mxfp4.h"

namespace llmq::testing {
namespace {

// Codes of 4 bits that are no integers: E2M1 with E4M3 over a number or times it, with powers of two; NF4,
// whose values are rounded to BF16 or F16 or are not; integers of 8 bits of which there are sixteen.
enum class Table : unsigned char { kNone, kLevels, kLevelsTimes, kPowers, kNf4, kNf4Half, kNf4Wide, kUneven };

struct NarrowCase {
  int bits;
  std::int64_t group;  // 0: one scale per channel
  bool symmetric;
  DType scales;
  bool minima = false;   // ggml's blocks: code * scale - minimum
  bool factors = false;  // their scales and minima: an FP16 number of several groups times a small integer
  Table table = Table::kNone;
};

void PrintTo(const NarrowCase& c, std::ostream* out) {
  *out << "w" << c.bits << "_g" << c.group
       << (c.minima      ? "_min "
           : c.symmetric ? "_sym "
                         : "_asym ")
       << dtype_row(c.scales).name << (c.factors ? "_factors" : "");
  if (c.table != Table::kNone) *out << "_table" << static_cast<int>(c.table);
}

constexpr NarrowCase kNarrowCases[] = {
    {4, 32, true, DType::kBF16},
    {4, 32, false, DType::kF16},
    {4, 64, true, DType::kF16},
    {4, 64, false, DType::kBF16},
    {4, 128, true, DType::kF32},
    {4, 128, false, DType::kBF16},
    {4, 0, true, DType::kBF16},
    {4, 0, false, DType::kF32},
    {8, 32, true, DType::kBF16},
    {8, 64, false, DType::kF16},
    {8, 128, false, DType::kBF16},
    {8, 0, true, DType::kBF16},
    {8, 0, false, DType::kF32},
    {2, 16, false, DType::kF16},
    {3, 64, true, DType::kBF16},
    {5, 32, true, DType::kF16},
    {6, 128, false, DType::kBF16},
    {4, 5, false, DType::kBF16},
    {8, 33, true, DType::kF16},
    {4, 8, true, DType::kBF16},
    {4, 20, true, DType::kBF16},
    {4, 32, false, DType::kF32, true},
    {4, 32, false, DType::kF16, true},
    {5, 32, false, DType::kF32, true},
    {2, 16, false, DType::kF32, true},
    {2, 32, true, DType::kBF16},
    {3, 16, true, DType::kF16},
    {6, 32, true, DType::kF32},
    {5, 48, true, DType::kF16},
    {2, 16, false, DType::kF32, true, true},
    {3, 16, true, DType::kF32, false, true},
    {4, 32, false, DType::kF32, true, true},
    {5, 32, false, DType::kF32, true, true},
    {6, 16, true, DType::kF32, false, true},
    {4, 16, true, DType::kF32, false, false, Table::kLevels},
    {4, 16, true, DType::kF32, false, false, Table::kLevelsTimes},
    {4, 32, true, DType::kF32, false, false, Table::kPowers},
    {4, 64, true, DType::kF32, false, false, Table::kNf4},
    {4, 32, true, DType::kF32, false, false, Table::kNf4Half},
    {4, 128, true, DType::kBF16, false, false, Table::kNf4Wide},
    {8, 32, true, DType::kF16, false, false, Table::kUneven},
    {8, 32, true, DType::kF32, false, true, Table::kUneven},
};

// bitsandbytes' own, to a few digits.
constexpr std::array<float, 16> kNf4 = {-1,      -0.69619F, -0.52507F, -0.39491F, -0.28444F, -0.18477F,
                                        -0.091F, 0,         0.07958F,  0.16093F,  0.24611F,  0.33791F,
                                        0.4407F, 0.56261F,  0.72295F,  1};

float scale_stored_as(DType dtype, double value) { return rounded(dtype, {static_cast<float>(value)})[0]; }

// One more group of scales that are products: integers of 4 bits beside 2-bit codes, of 6 with a minimum,
// else of 8 and of either sign.
void append_factors(const NarrowCase& c, std::int64_t index, Numbers& numbers, QuantizedMatrix& matrix) {
  ScaleFactors& factors = matrix.factors;
  if (index % factors.together == 0) {
    factors.d.push_back(to_float16(static_cast<float>((1 + numbers.uniform()) / 1024)));
    if (c.minima) factors.m.push_back(to_float16(static_cast<float>((1 + numbers.uniform()) / 256)));
  }
  const int top = c.bits == 2 ? 16 : 64,
            s = static_cast<int>(numbers.below(static_cast<std::uint64_t>(c.minima ? top : 256)));
  factors.s.push_back(static_cast<std::int8_t>(c.minima ? s : s - 128));
  matrix.scales.push_back(to_float(factors.d.back()) * static_cast<float>(factors.s.back()));
  if (!c.minima) return;
  factors.t.push_back(static_cast<std::uint8_t>(numbers.below(static_cast<std::uint64_t>(top))));
  matrix.minima.push_back(to_float(factors.m.back()) * static_cast<float>(factors.t.back()));
}

// The scale of one more group of a case of floats, around 2^scale.
float scale_of_floats(const NarrowCase& c, const QuantizedMatrix& matrix, Numbers& numbers, int spread,
                      int scale) {
  if (c.table == Table::kPowers) {
    const auto byte = 127 + scale + static_cast<int>(numbers.below(2 * spread + 1)) - spread;
    return mxfp4_scale(static_cast<std::uint8_t>(numbers.below(9) == 0 ? 0 : byte));
  }
  return nvfp4_scale(static_cast<std::uint8_t>(numbers.below(127)), matrix.global_scale, matrix.global_form);
}

// What a case's codes are, but for the codes themselves.
void set_table(const NarrowCase& c, int scale, QuantizedMatrix& matrix) {
  if (c.table >= Table::kLevels && c.table <= Table::kPowers) matrix.scheme.weight_type = WeightType::kFloat4;
  if (c.table == Table::kLevels || c.table == Table::kLevelsTimes) {
    matrix.global_form = c.table == Table::kLevels ? GlobalForm::kDivisor : GlobalForm::kFactor;
    matrix.global_scale = std::ldexp(1.37F, c.table == Table::kLevels ? -scale : scale);
  }
  if (c.table >= Table::kNf4 && c.table <= Table::kNf4Wide)
    matrix.code_values = {kNf4, c.table == Table::kNf4       ? DType::kBF16
                                : c.table == Table::kNf4Half ? DType::kF16
                                                             : DType::kF32};
}

std::uint8_t random_code(const NarrowCase& c, const QuantizedMatrix& matrix, Numbers& numbers) {
  if (c.table == Table::kUneven) return static_cast<std::uint8_t>(kUnevenValues.at(numbers.below(16)) + 128);
  return static_cast<std::uint8_t>(numbers.below(matrix.scheme.code_count()));
}

// Random codes, zeros and scales of either sign, of `spread` powers of two around 2^scale.
QuantizedMatrix narrow_matrix(const NarrowCase& c, std::int64_t n, std::int64_t k, Numbers& numbers,
                              int spread = 2, int scale = -6) {
  QuantizedMatrix matrix;
  matrix.scheme.bits = c.bits;
  matrix.scheme.granularity = c.group == 0 ? Granularity::kChannel : Granularity::kGroup;
  if (c.group > 0) matrix.scheme.group_size = static_cast<int>(c.group);
  matrix.scheme.symmetric = c.symmetric;
  matrix.scheme.scale_dtype = c.scales;
  matrix.out_features = n;
  matrix.in_features = k;
  set_table(c, scale, matrix);
  if (c.factors) matrix.factors.together = matrix.groups() % 2 == 0 ? matrix.groups() / 2 : matrix.groups();
  for (std::int64_t i = 0; i < n * k; ++i) matrix.codes.push_back(random_code(c, matrix, numbers));
  for (std::int64_t i = 0; i < n * matrix.groups(); ++i) {
    const int exponent = scale + static_cast<int>(numbers.below(2 * spread + 1)) - spread;
    const double sign = numbers.below(2) == 0 ? -1 : 1;
    matrix.zeros.push_back(static_cast<std::uint8_t>(c.minima ? 0
                                                     : c.symmetric
                                                         ? matrix.scheme.middle()
                                                         : numbers.below(matrix.scheme.code_count())));
    if (c.factors) {
      append_factors(c, i, numbers, matrix);
      continue;
    }
    if (c.table >= Table::kLevels && c.table <= Table::kPowers) {
      matrix.scales.push_back(scale_of_floats(c, matrix, numbers, spread, scale));
      continue;
    }
    matrix.scales.push_back(scale_stored_as(c.scales, std::ldexp(sign * (1 + numbers.uniform()), exponent)));
    if (c.minima)  // as large as the codes' values, so that they meet
      matrix.minima.push_back(
          scale_stored_as(c.scales, matrix.scales.back() * matrix.scheme.code_count() * numbers.uniform()));
  }
  return matrix;
}

// What a product is of: in bfloat16 compute a table's BF16 numbers, and scales, with nothing rounded between.
QuantizedMatrix narrow_multiplied(QuantizedMatrix matrix, Compute compute) {
  if (compute == Compute::kFloat32 || !matrix.code_values) return matrix;
  for (float& value : matrix.code_values->values) value = to_float(to_bfloat16(value));
  matrix.code_values->rounded_to = DType::kF32;
  return matrix;
}

// The same with every value taken by its magnitude.
QuantizedMatrix narrow_magnitudes(QuantizedMatrix matrix) {
  if (matrix.code_values)
    for (float& value : matrix.code_values->values) value = std::fabs(value);
  if (matrix.code_values || matrix.scheme.weight_type == WeightType::kFloat4) {
    if (!matrix.code_values)
      for (std::uint8_t& code : matrix.codes) code &= 7;
    for (float& scale : matrix.scales) scale = std::fabs(scale);
    return matrix;
  }
  for (std::int64_t n = 0; n < matrix.out_features; ++n)
    for (std::int64_t k = 0; k < matrix.in_features; ++k) {
      std::uint8_t& code = matrix.codes[static_cast<std::size_t>(n * matrix.in_features + k)];
      const int zero = matrix.zeros[static_cast<std::size_t>(n * matrix.groups() + k / matrix.group())];
      code = static_cast<std::uint8_t>(std::abs(code - zero));
    }
  // A code with a minimum is taken around the middle, whose share then meets the minimum.
  for (std::size_t i = 0; i < matrix.minima.size(); ++i)
    matrix.minima[i] = -(std::fabs(matrix.minima[i]) + matrix.scheme.middle() * std::fabs(matrix.scales[i]));
  matrix.factors = {};
  for (float& scale : matrix.scales) scale = std::fabs(scale);
  std::fill(matrix.zeros.begin(), matrix.zeros.end(), std::uint8_t{0});
  matrix.scheme.symmetric = false;
  return matrix;
}

class NarrowWeight : public BackendTest {
 protected:
  // Whether the backend has this case's weights at all: CUDA dequantizes NF4.
  bool takes(const NarrowCase& c) {
    return !is_device() || c.table < Table::kNf4 || c.table == Table::kUneven;
  }
  bool is_device() { return GetParam().name.starts_with("cuda"); }
  void check(const NarrowCase& c, std::int64_t m, std::int64_t n, std::int64_t groups, Compute compute,
             bool biased, int spread = 2, int scale = -6) {
    const std::int64_t k = c.group == 0 ? 37 * groups : c.group * groups;
    SCOPED_TRACE(::testing::PrintToString(c) +
                 fmt::format(" M {} N {} K {} {}", m, n, k, static_cast<int>(compute)));
    if (!takes(c)) return;
    Numbers numbers(static_cast<std::uint64_t>(m * 1000003 + n * 1009 + k));
    const QuantizedMatrix matrix = narrow_matrix(c, n, k, numbers, spread, scale),
                          multiplied = narrow_multiplied(
                              matrix, GetParam().name.rfind("cpu", 0) == 0 ? compute : Compute::kFloat32);
    const std::vector<float> x = numbers.values(m * k, 3), bias = numbers.values(biased ? n : 0);
    const auto weight = backend().prepare_quantized(matrix, compute);
    const std::vector<float> got = linear_on(backend(), *weight, m, x, bias);
    if (compute == Compute::kFloat32) {
      std::vector<float> values(matrix.codes.size());
      dequantize(matrix, values);
      const auto dense = backend().prepare(TensorView(values.data(), DType::kF32, Shape{n, k}), compute);
      ASSERT_TRUE(same_bits(got, linear_on(backend(), *dense, m, x, bias)));
    }
    const std::vector<float> want =
        linear_on(oracle(), *oracle().prepare_quantized(multiplied, compute), m, x, bias);
    const std::vector<float> sums =
        linear_on(oracle(), *oracle().prepare_quantized(narrow_magnitudes(multiplied), compute), m,
                  absolute(x), absolute(bias));
    // A product of a BF16 number and a code is exact. It takes part in at most K additions of its group (no
    // group is longer), is multiplied by its scale and takes part in one addition per group and in the
    // bias's: K + groups + 2 roundings. Float32: the value is rounded once, as the oracle's is, the product
    // and K additions: fewer. The oracle's values are rounded once where the scale has 24 bits, and its
    // result once. With minima: a sum over a group's inputs, of at most K additions, is multiplied by a
    // number rounded once and takes part in groups additions more; the oracle's values are rounded twice.
    const double roundings =
        static_cast<double>(k + matrix.groups() + 4 + (matrix.minima.empty() ? 0 : matrix.groups() + 4));
    std::vector<double> bound;
    for (std::size_t i = 0; i < want.size(); ++i)
      bound.push_back(gamma(roundings) * sums[i] * (1 + kFp32Roundoff) + fp32_rounding_bound(want[i]));
    ASSERT_EQ(outside(got, widened(want), bound), "");
  }
};

// What is of a layout: the oracle keeps FP32 values, the CPU and a device have their own.
class CpuNarrowWeight : public NarrowWeight {};
class DeviceNarrowWeight : public NarrowWeight {};

TEST_P(NarrowWeight, AgreesWithTheOracle) {
  const std::vector<std::int64_t> rows = {1, 2, 3, 4, 5, 7, 8, 9, 13, 50};
  std::size_t turn = 0;
  for (const NarrowCase& c : kNarrowCases)
    for (const std::int64_t n : {1, 33, 80})
      for (const std::int64_t groups : {1, 2, 4, 9})
        for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16}) {
          ++turn;
          ASSERT_NO_FATAL_FAILURE(check(c, rows[turn % rows.size()], n, groups, compute, turn % 3 == 0));
        }
}

TEST_P(NarrowWeight, ExtremeScales) {
  for (const NarrowCase& c : kNarrowCases) {
    if (c.scales == DType::kF16 || c.factors || c.table == Table::kNf4Half)
      continue;  // FP16 reaches no extremes
    for (const std::int64_t m : {1, 3, 9})
      for (const int scale : {-70, 0, 70})
        ASSERT_NO_FATAL_FAILURE(check(c, m, 33, 4, Compute::kBFloat16, false, 30, scale));
  }
}

// One row against one of the weights of a small model, at lengths that fill several chunks of a panel.
TEST_P(NarrowWeight, LongRows) {
  for (const std::int64_t m : {1, 6, 21}) {
    ASSERT_NO_FATAL_FAILURE(check({4, 64, false, DType::kBF16}, m, 35, 40, Compute::kBFloat16, true));
    ASSERT_NO_FATAL_FAILURE(check({8, 0, true, DType::kF32}, m, 35, 64, Compute::kBFloat16, false));
    ASSERT_NO_FATAL_FAILURE(check({4, 128, true, DType::kBF16}, m, 35, 16, Compute::kFloat32, true));
    // Narrow panels fill a chunk late.
    ASSERT_NO_FATAL_FAILURE(check({4, 64, false, DType::kBF16}, m, 5, 300, Compute::kBFloat16, true));
    for (const NarrowCase& c : kNarrowCases)
      if (c.factors) {
        ASSERT_NO_FATAL_FAILURE(check(c, m, 35, 160, Compute::kBFloat16, true));
      }
  }
}

TEST_P(CpuNarrowWeight, TakesAsManyBytesAsItsCodesScalesAndZeros) {
  Numbers numbers(3);
  const std::int64_t n = 192, k = 640;
  for (const NarrowCase& c : kNarrowCases) {
    if (c.group % 8 != 0 || (c.group != 0 && k % c.group != 0)) continue;
    const QuantizedMatrix matrix = narrow_matrix(c, n, k, numbers);
    const bool in_units =
        (c.symmetric || c.minima) && matrix.group() % 16 == 0 && (c.bits != 5 || matrix.group() % 32 == 0);
    const bool floats = c.table >= Table::kLevels && c.table <= Table::kPowers;
    const std::int64_t stored = c.table != Table::kNone ? 4
                                : in_units              ? c.bits
                                : c.bits <= 4           ? 4
                                                        : 8,
                       scale = floats                    ? 1
                               : c.scales == DType::kF32 ? 4
                                                         : 2;
    std::int64_t numbers_bytes = n * matrix.groups() *
                                 (c.minima      ? 2 * scale
                                  : c.symmetric ? scale
                                                : scale + 1);
    if (c.factors)  // 2 bits: both integers in one byte
      numbers_bytes = n * matrix.groups() * (c.minima && c.bits != 2 ? 2 : 1) +
                      n * matrix.groups() / matrix.factors.together * (c.minima ? 4 : 2);
    EXPECT_EQ(static_cast<std::int64_t>(backend().prepare_quantized(matrix, Compute::kBFloat16)->bytes),
              n * k * stored / 8 + numbers_bytes)
        << ::testing::PrintToString(c);
  }
}

// Four bits a code and a byte a scale, features padded to 64 and positions to whole tiles of 64; scales that
// no byte stands for, and NF4, are no such weights.
TEST_P(DeviceNarrowWeight, HoldsE2m1InFourBits) {
  for (const NarrowCase& c : kNarrowCases) {
    if (c.table < Table::kLevels || c.table > Table::kNf4Wide) continue;
    Numbers numbers(9);
    QuantizedMatrix matrix = narrow_matrix(c, 70, 160, numbers);
    EXPECT_EQ(backend().keeps_codes(matrix, Compute::kBFloat16), takes(c)) << ::testing::PrintToString(c);
    if (!takes(c)) continue;
    EXPECT_EQ(static_cast<std::int64_t>(backend().prepare_quantized(matrix, Compute::kBFloat16)->bytes),
              128 * 192 / 2 + 128 * (160 / c.group));
    matrix.scales[7] = 0.3F;
    EXPECT_FALSE(backend().keeps_codes(matrix, Compute::kBFloat16));
    EXPECT_TRUE(backend().keeps_codes(matrix, Compute::kFloat32));
  }
}

TEST_P(NarrowWeight, ColumnsInAnotherOrderAreRefused) {
  Numbers numbers(4);
  QuantizedMatrix matrix = narrow_matrix(kNarrowCases[0], 4, 64, numbers);
  EXPECT_TRUE(backend().keeps_codes(matrix, Compute::kFloat32));
  if (GetParam().name.rfind("cpu", 0) != 0) return;  // the oracle multiplies any weight
  for (std::int32_t k = 0; k < 64; ++k) matrix.column_group.push_back(k % 2);
  EXPECT_FALSE(backend().keeps_codes(matrix, Compute::kFloat32));
  EXPECT_THROW(backend().prepare_quantized(matrix, Compute::kFloat32), Error);
}

// Whatever other columns the weight has.
TEST_P(NarrowWeight, AColumnHasItsBitsInAnyWeight) {
  for (const NarrowCase& c : kNarrowCases)
    for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16})
      for (const std::int64_t m : {1, 21}) {
        if (!takes(c)) continue;
        const std::int64_t n = 82, k = c.group == 0 ? 133 : c.group * 5;
        Numbers numbers(22);
        const QuantizedMatrix matrix = narrow_matrix(c, n, k, numbers);
        const std::vector<float> x = numbers.values(m * k), bias = numbers.values(n);
        const std::vector<float> all =
            linear_on(backend(), *backend().prepare_quantized(matrix, compute), m, x, bias);
        for (const auto& [first, count] :
             std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 41}, {41, 41}, {20, 21}, {79, 3}})
          ASSERT_TRUE(same_bits(
              linear_on(backend(), *backend().prepare_quantized(row_slice(matrix, first, count), compute), m,
                        x, rows_of(bias, first, count, 1)),
              columns_of(all, n, first, count)))
              << ::testing::PrintToString(c) << " columns " << first << " + " << count << ", " << m
              << " rows";
      }
}

// The experts of a step: more linears than one round takes, of few rows and of many, one of them dense.
TEST_P(NarrowWeight, ManyLinearsTogetherHaveTheBitsOfEachAlone) {
  constexpr std::int64_t kLinears = 70, kDense = 40, k = 64, kRows[] = {1, 2, 40, 1, 7};
  Numbers numbers(70);
  const std::vector<float> dense = numbers.values(33 * k);
  std::vector<std::unique_ptr<PreparedWeight>> weights;
  std::vector<Placed> x, together, alone;
  std::vector<LinearCall> calls;
  for (std::int64_t i = 0; i < kLinears; ++i) {
    const std::int64_t rows = kRows[i % 5], n = i == kDense ? 33 : 17 + i % 3 * 40;
    weights.push_back(
        i == kDense
            ? backend().prepare(TensorView(dense.data(), DType::kF32, Shape{n, k}), Compute::kBFloat16)
            : backend().prepare_quantized(narrow_matrix(kNarrowCases[2], n, k, numbers), Compute::kBFloat16));
    x.push_back(put(backend(), DType::kBF16, {rows, k}, numbers.values(rows * k)));
    together.push_back(poisoned(backend(), DType::kF32, {rows, n}));
    alone.push_back(poisoned(backend(), DType::kF32, {rows, n}));
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    calls.push_back({together[i].view, x[i].view, weights[i].get(), {}});
    backend().linear(alone[i].view, x[i].view, *weights[i], {});
  }
  backend().linears(calls);
  for (std::size_t i = 0; i < weights.size(); ++i)
    ASSERT_TRUE(same_bits(get(backend(), together[i].view), get(backend(), alone[i].view))) << "linear " << i;
}

// Any number of rows, any threads: the bits that the row has alone on one thread, also where its inputs are
// so small that products are no normal numbers.
TEST_P(NarrowWeight, ARowHasItsBitsInAnyBatch) {
  std::string why;
  const std::shared_ptr<Backend> single = open_backend({GetParam().name, 1}, &why);
  constexpr std::int64_t kMostRows = 60;
  for (const NarrowCase& c : kNarrowCases)
    for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16}) {
      if (!takes(c)) continue;
      if (&c != kNarrowCases && c.group > 0 && GetParam().threads != 2)
        continue;  // which codes they are, threads do not see
      const std::int64_t n = 72, k = c.group == 0 ? 133 : c.group * 5;
      Numbers numbers(21);
      const QuantizedMatrix matrix = narrow_matrix(c, n, k, numbers);
      std::vector<float> x = numbers.values(kMostRows * k);
      for (std::int64_t row = 1; row < kMostRows; row += 3)
        for (std::int64_t i = row * k; i < (row + 1) * k; ++i)
          x[static_cast<std::size_t>(i)] *= row % 2 == 0 ? 0x1p-127F : 0x1p-109F;
      const auto alone = single->prepare_quantized(matrix, compute),
                 weight = backend().prepare_quantized(matrix, compute);
      std::vector<float> all;
      for (std::int64_t row = 0; row < kMostRows; ++row) {
        const std::vector<float> one = linear_on(*single, *alone, 1, rows_of(x, row, 1, k));
        all.insert(all.end(), one.begin(), one.end());
      }
      for (std::int64_t count = 1; count <= kMostRows; count += count < 13 ? 1 : 23)
        ASSERT_TRUE(same_bits(linear_on(backend(), *weight, count, rows_of(x, kMostRows - count, count, k)),
                              rows_of(all, kMostRows - count, count, n)))
            << ::testing::PrintToString(c) << " " << count << " rows";
    }
}

// Scales that no byte stands for stay the numbers that they are, as do those whose number is out of reach.
TEST_P(CpuNarrowWeight, ScalesOfNoBytesAreKeptAsNumbers) {
  for (const bool far : {false, true}) {
    const NarrowCase c = {4, 16, true, DType::kF32, false, false, Table::kLevels};
    Numbers numbers(5);
    const std::int64_t n = 64, k = 64;
    QuantizedMatrix matrix = narrow_matrix(c, n, k, numbers, 2, far ? 20 : 0);
    if (!far) matrix.scales[7] = 0.3F;
    const std::vector<float> x = numbers.values(k);
    const auto weight = backend().prepare_quantized(matrix, Compute::kFloat32);
    std::vector<float> values(matrix.codes.size());
    dequantize(matrix, values);
    const auto dense =
        backend().prepare(TensorView(values.data(), DType::kF32, Shape{n, k}), Compute::kFloat32);
    ASSERT_TRUE(same_bits(linear_on(backend(), *weight, 1, x), linear_on(backend(), *dense, 1, x)));
    EXPECT_EQ(static_cast<std::int64_t>(weight->bytes), n * k / 2 + n * k / 16 * 4);
  }
}

// BF16 numbers made of codes without the instruction for pairs run only where the processor has none, or
// here.
std::vector<BackendParam> narrow_weight_backends() {
  std::vector<BackendParam> params = backends({1, 2, 8});
  params.push_back({"cpu_avx512_plain", 2});
  return params;
}

INSTANTIATE_TEST_SUITE_P(Every, NarrowWeight, ::testing::ValuesIn(narrow_weight_backends()), param_name);

std::vector<BackendParam> cpu_backends() {
  std::vector<BackendParam> params = narrow_weight_backends();
  std::erase_if(params, [](const BackendParam& param) { return !param.name.starts_with("cpu"); });
  return params;
}
INSTANTIATE_TEST_SUITE_P(Every, CpuNarrowWeight, ::testing::ValuesIn(cpu_backends()), param_name);
INSTANTIATE_TEST_SUITE_P(Every, DeviceNarrowWeight, ::testing::ValuesIn(device_backends()), param_name);

}  // namespace
}  // namespace llmq::testing
