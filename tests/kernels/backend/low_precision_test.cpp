// Linears with 8-bit inputs on every backend. Integer sums are exact, so what remains are a few FP32
// roundings, and every CPU level gives the same bits; E4M3 products are exact, and their FP32 sums are
// bounded like any other (support/tolerance.h).
#include "device/low_precision.h"
#include "backend_fixture.h"
#include "tensor/block_scales.h"
#include "tensor/mxfp4.h"

namespace llmq::testing {
namespace {

struct LowPrecisionCase {
  const char* name;
  WeightType type;
  int bits;
  Granularity granularity;
  int group;
  bool symmetric;
  ActivationScale activation;
};

constexpr LowPrecisionCase kLowPrecisionCases[] = {
    {"w8a8", WeightType::kInteger, 8, Granularity::kChannel, 0, true, ActivationScale::kToken},
    {"w8a8_asym", WeightType::kInteger, 8, Granularity::kChannel, 0, false, ActivationScale::kToken},
    {"w8a8_static", WeightType::kInteger, 8, Granularity::kTensor, 0, true, ActivationScale::kTensor},
    {"w8a8_g32", WeightType::kInteger, 8, Granularity::kGroup, 32, true, ActivationScale::kToken},
    {"w4a8_g16", WeightType::kInteger, 4, Granularity::kGroup, 16, true, ActivationScale::kToken},
    {"w4a8_g5_asym", WeightType::kInteger, 4, Granularity::kGroup, 5, false, ActivationScale::kToken},
    {"w3a8_static", WeightType::kInteger, 3, Granularity::kGroup, 33, false, ActivationScale::kTensor},
    {"fp8", WeightType::kFloat8, 8, Granularity::kChannel, 0, true, ActivationScale::kToken},
    {"fp8_static", WeightType::kFloat8, 8, Granularity::kTensor, 0, true, ActivationScale::kTensor},
    {"fp8_block", WeightType::kFloat8, 8, Granularity::kBlock, 0, true, ActivationScale::kTokenGroup},
    {"fp8_block_token", WeightType::kFloat8, 8, Granularity::kBlock, 0, true, ActivationScale::kToken},
    {"nvfp4", WeightType::kFloat4, 4, Granularity::kGroup, 16, true, ActivationScale::kTokenGroup},
    {"mxfp4a4", WeightType::kFloat4, 4, Granularity::kGroup, 32, true, ActivationScale::kTokenGroup},
    {"mxfp8", WeightType::kFloat8, 8, Granularity::kGroup, 32, true, ActivationScale::kTokenGroup},
};

bool is_float(const LowPrecisionCase& c) { return c.type != WeightType::kInteger; }

// A scale that is stored in the scheme's form.
float stored_in_form(const QuantizedMatrix& matrix, Numbers& numbers) {
  switch (matrix.scheme.scale_form()) {
    case ScaleForm::kNumber:
      return static_cast<float>(0.001 + numbers.uniform());
    case ScaleForm::kTwoLevel:
      return nvfp4_scale(static_cast<std::uint8_t>(1 + numbers.below(0x7e)), matrix.global_scale);
    case ScaleForm::kExponent:
      return mxfp4_scale(static_cast<std::uint8_t>(120 + numbers.below(10)));
  }
  return 0;
}

// Random codes, scales and zeros; a scale is shared as the granularity says.
QuantizedMatrix low_precision_matrix(const LowPrecisionCase& c, std::int64_t n, std::int64_t k,
                                     Numbers& numbers) {
  QuantizedMatrix matrix;
  matrix.scheme.bits = c.bits;
  matrix.scheme.activation_bits = c.type == WeightType::kFloat4 ? 4 : 8;
  matrix.scheme.weight_type = c.type;
  matrix.scheme.activation_scale = c.activation;
  matrix.scheme.granularity = c.granularity;
  if (c.group > 0) matrix.scheme.group_size = c.group;
  matrix.scheme.symmetric = c.symmetric;
  matrix.out_features = n;
  matrix.in_features = k;
  if (c.activation == ActivationScale::kTensor) matrix.input_scale = 0.0078f;
  if (matrix.scheme.calibrates_inputs() && c.activation != ActivationScale::kTensor)
    matrix.input_scale = 700, matrix.global_scale = 3000;
  for (std::int64_t i = 0; i < n * k; ++i) {
    std::int64_t code = numbers.below(matrix.scheme.code_count());
    if (c.type == WeightType::kFloat8 && code % 128 == 127) code = 0x7e;  // 448, not NaN
    matrix.codes.push_back(static_cast<std::uint8_t>(code));
  }
  for (std::int64_t row = 0; row < n; ++row)
    for (std::int64_t g = 0; g < matrix.groups(); ++g) {
      const bool shared = (c.granularity == Granularity::kTensor && row > 0) ||
                          (c.granularity == Granularity::kBlock && row % kFloat8Block != 0);
      matrix.scales.push_back(shared
                                  ? matrix.scales[static_cast<std::size_t>((row - 1) * matrix.groups() + g)]
                                  : stored_in_form(matrix, numbers));
      matrix.zeros.push_back(static_cast<std::uint8_t>(
          c.symmetric ? matrix.scheme.middle() : numbers.below(matrix.scheme.code_count())));
    }
  return matrix;
}

// The same with every value taken by its magnitude.
QuantizedMatrix low_precision_magnitudes(QuantizedMatrix matrix) {
  for (std::int64_t n = 0; n < matrix.out_features; ++n)
    for (std::int64_t k = 0; k < matrix.in_features; ++k) {
      std::uint8_t& code = matrix.codes[static_cast<std::size_t>(n * matrix.in_features + k)];
      const int zero = matrix.zeros[static_cast<std::size_t>(n * matrix.groups() + k / matrix.group())];
      code = matrix.scheme.weight_type == WeightType::kFloat8 ? static_cast<std::uint8_t>(code & 0x7f)
             : matrix.scheme.weight_type == WeightType::kFloat4
                 ? static_cast<std::uint8_t>(code & 7)
                 : static_cast<std::uint8_t>(code > zero ? code - zero : zero - code);
    }
  std::fill(matrix.zeros.begin(), matrix.zeros.end(), std::uint8_t{0});
  return matrix;
}

std::vector<float> run_low_precision(Backend& backend, const QuantizedMatrix& matrix, Compute compute,
                                     std::int64_t m, const std::vector<float>& x,
                                     const std::vector<float>& bias = {}) {
  return linear_on(backend, *backend.prepare_quantized(matrix, compute), m, x, bias);
}

class LowPrecision : public BackendTest {
 protected:
  void SetUp() override {
    BackendTest::SetUp();
    if (!IsSkipped()) scalar_ = make_cpu_backend_at(1, "scalar");
  }

  void check(const LowPrecisionCase& c, std::int64_t m, std::int64_t n, std::int64_t k, Compute compute,
             bool with_bias) {
    SCOPED_TRACE(fmt::format("{} M {} N {} K {}", c.name, m, n, k));
    Numbers numbers(static_cast<std::uint64_t>(m * 1000003 + n * 1009 + k));
    const QuantizedMatrix matrix = low_precision_matrix(c, n, k, numbers);
    const std::vector<float> x = numbers.values(m * k), bias = numbers.values(with_bias ? n : 0, 0, 10);
    const std::vector<float> want = run_low_precision(oracle(), matrix, compute, m, x, bias);
    std::vector<float> sums = run_low_precision(oracle(), low_precision_magnitudes(matrix), compute, m,
                                                absolute(x), absolute(bias));
    // INT8: each group's sum becomes FP32, is multiplied and added (2 roundings for each of G groups, the
    // first addition is none), then scaled and given its bias: 2 G + 1 at most for any one term. E4M3: K
    // roundings of the sum and one more product in token groups. The oracle rounds its result once.
    // Magnitudes of the inputs may round to 127 where the input rounded to -128.
    const auto groups = static_cast<double>(matrix.groups());
    const double roundings = 2 * groups + 1 + (is_float(c) ? static_cast<double>(k) + 1 : 0);
    std::vector<double> bound;
    for (std::size_t i = 0; i < want.size(); ++i)
      bound.push_back(gamma(roundings) * sums[i] * (128.0 / 127.0) * (1 + kFp32Roundoff) +
                      fp32_rounding_bound(want[i]));
    std::vector<float> got = run_low_precision(backend(), matrix, compute, m, x, bias);
    ASSERT_EQ(outside(got, widened(want), bound), "");
    const bool cpu = GetParam().name.rfind("cpu", 0) == 0;
    if (cpu && !is_float(c)) {
      ASSERT_TRUE(same_bits(got, run_low_precision(*scalar_, matrix, compute, m, x, bias)));
    }
    plant(c, matrix, x, got, want, bound, compute);
  }

  // One code of the inputs off by one step, where the weight is greatest, is outside the bound.
  void plant(const LowPrecisionCase& c, const QuantizedMatrix& matrix, const std::vector<float>& x,
             std::vector<float> got, const std::vector<float>& want, const std::vector<double>& bound,
             Compute compute) {
    const std::int64_t k = matrix.in_features, n = matrix.out_features;
    if (is_float(c) || k > 65) return;  // a thousand groups of 5 may round by more than one code
    float greatest = 0, input = 0;
    for (const float v : rounded(activation_dtype(compute), {x.end() - k, x.end()}))
      input = std::max(input, std::fabs(v));
    for (std::int64_t i = 0; i < k; ++i) {
      const auto group = static_cast<std::size_t>((n - 1) * matrix.groups() + i / matrix.group());
      greatest = std::max(
          greatest,
          std::fabs(weight_value(matrix.scheme, matrix.codes[static_cast<std::size_t>((n - 1) * k + i)],
                                 matrix.zeros[group], matrix.scales[group])));
    }
    const float scale = c.activation == ActivationScale::kTensor ? matrix.input_scale
                                                                 : input / input_top(WeightType::kInteger);
    if (greatest == 0 || scale == 0) return;
    got.back() += greatest * scale;
    EXPECT_NE(outside(got, widened(want), bound), "");
  }

 private:
  std::shared_ptr<Backend> scalar_;
};

class DeviceLowPrecision : public LowPrecision {};

// Linears that run together have the bits of each alone: one input rounded once for all that round it alike
// (the second has a scale of its own where scales are static), dense and low-precision weights side by side,
// few rows and several blocks of them.
TEST_P(LowPrecision, LinearsTogetherHaveTheBitsOfEachAlone) {
  for (const LowPrecisionCase& c : kLowPrecisionCases)
    for (const std::int64_t m : {1, 5, 200}) {
      const std::int64_t k = 165, widths[] = {7, 130, 33};
      Numbers numbers(static_cast<std::uint64_t>(m));
      const Placed x = put(backend(), DType::kBF16, {m, k}, numbers.values(m * k));
      const std::vector<float> dense = numbers.values(33 * k);
      for (const bool mixed : {false, true}) {
        std::vector<std::unique_ptr<PreparedWeight>> weights;
        for (const std::int64_t n : widths) {
          QuantizedMatrix matrix = low_precision_matrix(c, n, k, numbers);
          if (n == 130) matrix.input_scale *= 3;
          weights.push_back(backend().prepare_quantized(matrix, Compute::kBFloat16));
        }
        if (mixed)
          weights.back() =
              backend().prepare(TensorView(dense.data(), DType::kF32, Shape{33, k}), Compute::kBFloat16);
        std::vector<Placed> together, alone;
        std::vector<LinearCall> calls;
        for (std::size_t i = 0; i < weights.size(); ++i) {
          together.push_back(poisoned(backend(), DType::kF32, {m, widths[i]}));
          alone.push_back(poisoned(backend(), DType::kF32, {m, widths[i]}));
          calls.push_back({together.back().view, x.view, weights[i].get(), {}});
          backend().linear(alone.back().view, x.view, *weights[i], {});
        }
        backend().linears(calls);
        for (std::size_t i = 0; i < weights.size(); ++i)
          ASSERT_TRUE(same_bits(get(backend(), together[i].view), get(backend(), alone[i].view)))
              << c.name << " " << m << " rows, linear " << i;
      }
    }
}

TEST_P(LowPrecision, OddShapes) {
  const std::vector<std::int64_t> sizes = {1, 2, 3, 15, 16, 17, 31, 33, 63, 65};
  for (const LowPrecisionCase& c : kLowPrecisionCases)
    for (std::size_t i = 0; i < sizes.size(); ++i)
      for (std::size_t j = i % 2; j < sizes.size(); j += 2)
        check(c, sizes[i], sizes[j], sizes[(3 * i + 7 * j) % sizes.size()],
              (i + j) % 3 == 0 ? Compute::kBFloat16 : Compute::kFloat32, j % 3 == 0);
}

// A column has its bits whatever other columns the weight has; blocks of scales are cut in the middle.
TEST_P(LowPrecision, AColumnHasItsBitsInAnyWeight) {
  for (const LowPrecisionCase& c : kLowPrecisionCases)
    for (const std::int64_t m : {1, 21}) {
      const std::int64_t n = 164, k = 165;
      Numbers numbers(22);
      const QuantizedMatrix matrix = low_precision_matrix(c, n, k, numbers);
      const std::vector<float> x = numbers.values(m * k), bias = numbers.values(n, 0, 10);
      const std::vector<float> all = run_low_precision(backend(), matrix, Compute::kBFloat16, m, x, bias);
      for (const auto& [first, count] :
           std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 82}, {82, 82}, {41, 41}, {161, 3}})
        ASSERT_TRUE(
            same_bits(run_low_precision(backend(), row_slice(matrix, first, count), Compute::kBFloat16, m, x,
                                        {bias.begin() + first, bias.begin() + first + count}),
                      columns_of(all, n, first, count)))
            << c.name << " columns " << first << " + " << count << ", " << m << " rows";
    }
}

TEST_P(LowPrecision, ModelShapes) {
  for (const LowPrecisionCase& c : kLowPrecisionCases) {
    check(c, 1, 192, 576, Compute::kFloat32, false);
    check(c, 7, 193, 1536, Compute::kBFloat16, true);
    check(c, 129, 40, 385, Compute::kFloat32, true);
    check(c, 2, 33, 5000, Compute::kFloat32, false);
  }
}

// Beside inputs of 4 bits a device has codes and bytes of scales too: 4.5 and 4.25 bits, of padded sides.
TEST_P(DeviceLowPrecision, HoldsE2m1InFourBits) {
  for (const LowPrecisionCase& c : kLowPrecisionCases) {
    if (c.type != WeightType::kFloat4) continue;
    Numbers numbers(4);
    const auto weight =
        backend().prepare_quantized(low_precision_matrix(c, 70, 256, numbers), Compute::kBFloat16);
    EXPECT_EQ(static_cast<std::int64_t>(weight->bytes), 128 * 256 / 2 + 128 * (256 / c.group)) << c.name;
  }
}

// The rules of rounding, seen through an identity: 127.5 steps reach 127 and -128, ties go to even codes.
TEST_P(LowPrecision, IntegerRoundingIsCompressedTensors) {
  const std::vector<float> x = {127.5f, -127.5f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 126.5f, -126.49f, 100.0f},
                           want = {127, -128, 0, 2, 2, 0, -2, 126, -126, 100};
  const auto k = static_cast<std::int64_t>(x.size());
  QuantizedMatrix identity;
  identity.scheme.bits = identity.scheme.activation_bits = 8;
  identity.scheme.activation_scale = ActivationScale::kToken;
  identity.scheme.granularity = Granularity::kChannel;
  identity.scheme.symmetric = true;
  identity.out_features = identity.in_features = k;
  identity.codes.assign(static_cast<std::size_t>(k * k), 128);
  for (std::int64_t i = 0; i < k; ++i) identity.codes[static_cast<std::size_t>(i * k + i)] = 129;
  identity.scales.assign(static_cast<std::size_t>(k), 1.0f);
  identity.zeros.assign(static_cast<std::size_t>(k), 128);
  EXPECT_EQ(run_low_precision(backend(), identity, Compute::kFloat32, 1, x), want);
  // Beyond a calibrated range codes saturate.
  identity.scheme.activation_scale = ActivationScale::kTensor;
  identity.input_scale = 0.5f;
  std::vector<float> saturated = {63.5f, -64, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 63.5f, -63, 50};
  saturated[7] = 63.5f, saturated[8] = -63.0f;
  const std::vector<float> got =
      run_low_precision(backend(), identity, Compute::kFloat32, 1,
                        {1e9f, -1e30f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 126.5f, -63, 50});
  EXPECT_EQ(got, saturated);
  // Nothing but zeros: the bias alone.
  EXPECT_EQ(run_low_precision(backend(), identity, Compute::kFloat32, 1, std::vector<float>(x.size()), want),
            want);
}

// Inputs as floats in groups, seen through an identity: each with the scale of its own 16 or 32 columns, from
// inputs of either type.
TEST_P(LowPrecision, FloatGroupsAreRoundedByThemselves) {
  const struct {
    const LowPrecisionCase& c;
    float one;
    std::vector<float> x, want;
  } cases[] = {
      // 6 / 6 * 64 is 64, of 16 columns; then 0.375 / 6 * 64, and a largest one of 7: 7 / 6 * 64 becomes 72
      {kLowPrecisionCases[11], 2, {6, 5, -2.5f, 0.25f, -0.2f, 0.3f}, {6, 4, -2, 0, 0, 0.5f}},
      {kLowPrecisionCases[11], 2, {0.375f, -0.09375f}, {0.375f, -0.09375f}},
      {kLowPrecisionCases[11], 2, {7, 1}, {6.75f, 1.125f}},
      {kLowPrecisionCases[12], 2, {7, 6.9f, 1, 0.7f}, {8, 6, 1, 1}},  // from 1.75 * 4 on by 2
      {kLowPrecisionCases[12], 2, {6.9f, 5, 1, 0.2f}, {6, 4, 1, 0}},
      {kLowPrecisionCases[13], 0x38, {448, 100, 1.0625f, 0.01f}, {448, 96, 1, 0.01171875f}}};
  for (const auto& one : cases) {
    SCOPED_TRACE(one.c.name);
    Numbers numbers(1);
    const std::int64_t k = 96, first = 32;
    QuantizedMatrix identity = low_precision_matrix(one.c, k, k, numbers);
    identity.global_scale = 4, identity.input_scale = 64;
    std::fill(identity.codes.begin(), identity.codes.end(), std::uint8_t{0});
    std::fill(identity.scales.begin(), identity.scales.end(), 1.0f);
    for (std::int64_t i = 0; i < k; ++i)
      identity.codes[static_cast<std::size_t>(i * k + i)] = static_cast<std::uint8_t>(one.one);
    std::vector<float> x(static_cast<std::size_t>(k), 0.0f), want(x);
    std::fill_n(x.begin(), first, 1000.0f);  // another group's
    std::copy(one.x.begin(), one.x.end(), x.begin() + first);
    std::copy(one.want.begin(), one.want.end(), want.begin() + first);
    for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16}) {
      if (compute == Compute::kBFloat16) {
        const std::vector<float> rounded_x = rounded(DType::kBF16, x);
        if (rounded_x != x) continue;
      }
      const std::vector<float> got = run_low_precision(backend(), identity, compute, 1, x);
      for (std::size_t i = 0; i < one.want.size() + 4; ++i)
        EXPECT_EQ(got[static_cast<std::size_t>(first) + i], want[static_cast<std::size_t>(first) + i]) << i;
    }
  }
}

TEST_P(LowPrecision, Float8RoundingIsThatOfOneNumber) {
  const std::int64_t k = 600;
  QuantizedMatrix identity;
  identity.scheme.bits = identity.scheme.activation_bits = 8;
  identity.scheme.weight_type = WeightType::kFloat8;
  identity.scheme.activation_scale = ActivationScale::kTensor;
  identity.scheme.granularity = Granularity::kTensor;
  identity.scheme.symmetric = true;
  identity.input_scale = 1;
  identity.out_features = identity.in_features = k;
  identity.codes.assign(static_cast<std::size_t>(k * k), 0);
  for (std::int64_t i = 0; i < k; ++i) identity.codes[static_cast<std::size_t>(i * k + i)] = 0x38;  // 1
  identity.scales.assign(static_cast<std::size_t>(k), 1.0f);
  identity.zeros.assign(static_cast<std::size_t>(k), 128);
  std::vector<float> x, want;
  Numbers numbers(9);
  for (int code = 0; code < 0x7e; ++code) {  // every number, every tie, and its neighbours
    const float low = to_float(Float8{static_cast<std::uint8_t>(code)}),
                high = to_float(Float8{static_cast<std::uint8_t>(code + 1)}), tie = (low + high) / 2;
    for (const float v : {low, -tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 500.0f)}) x.push_back(v);
  }
  for (const float v : {448.0f, 464.0f, -1e30f, 1e-30f, -0x1p-10f}) x.push_back(v);
  while (static_cast<std::int64_t>(x.size()) < k) x.push_back(numbers.values(1, 12)[0]);
  x.resize(static_cast<std::size_t>(k));
  for (const float v : x) want.push_back(to_float(to_float8(v)) + 0.0f);
  EXPECT_EQ(run_low_precision(backend(), identity, Compute::kFloat32, 1, x), want);
}

// A row with a number that is none gives no numbers; the rows beside it do not know.
TEST_P(LowPrecision, OnlyTheRowThatHoldsNaNIsLost) {
  for (const LowPrecisionCase& c : kLowPrecisionCases)
    for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
      SCOPED_TRACE(c.name);
      Numbers numbers(3);
      const std::int64_t m = 5, n = 19, k = 150;
      const QuantizedMatrix matrix = low_precision_matrix(c, n, k, numbers);
      std::vector<float> x = numbers.values(m * k);
      const std::vector<float> before = run_low_precision(backend(), matrix, Compute::kFloat32, m, x);
      x[static_cast<std::size_t>(2 * k + 140)] = bad;
      const std::vector<float> after = run_low_precision(backend(), matrix, Compute::kFloat32, m, x);
      for (std::size_t i = 0; i < after.size(); ++i) {
        const bool row = i / static_cast<std::size_t>(n) == 2;
        ASSERT_EQ(std::isnan(after[i]), row);
        if (!row) {
          ASSERT_EQ(after[i], before[i]);
        }
      }
    }
}

TEST_P(LowPrecision, RowsDoNotKnowEachOther) {
  const std::int64_t rows = 99;
  for (const LowPrecisionCase& c : kLowPrecisionCases)
    for (const std::int64_t n : {40, 193}) {
      SCOPED_TRACE(c.name);
      Numbers numbers(4);
      const std::int64_t k = 385;
      const QuantizedMatrix matrix = low_precision_matrix(c, n, k, numbers);
      const std::vector<float> x = numbers.values(rows * k);
      const std::vector<float> all = run_low_precision(backend(), matrix, Compute::kBFloat16, rows, x);
      for (std::int64_t count : {1, 2, 3, 5, 13, 64}) {
        const std::vector<float> last =
            run_low_precision(backend(), matrix, Compute::kBFloat16, count, {x.end() - count * k, x.end()});
        ASSERT_TRUE(same_bits(last, {all.end() - count * n, all.end()})) << count;
      }
    }
}

TEST_P(LowPrecision, WhatItCannotMeanIsRefused) {
  Numbers numbers(5);
  const auto refused = [&](QuantizedMatrix matrix) {
    try {
      backend().prepare_quantized(matrix, Compute::kFloat32);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kUnsupported;
    }
    return false;
  };
  const QuantizedMatrix good = low_precision_matrix(kLowPrecisionCases[2], 3, 8, numbers);
  EXPECT_FALSE(refused(good));
  QuantizedMatrix bad = good;
  bad.scheme.activation_bits = 16;
  EXPECT_TRUE(refused(bad));
  bad = good, bad.input_scale = 0;
  EXPECT_TRUE(refused(bad));
  bad = good, bad.input_scale = std::nanf("");
  EXPECT_TRUE(refused(bad));
  bad = good, bad.column_group.assign(8, 0);
  EXPECT_TRUE(refused(bad));
  bad = good, bad.scheme.activation_scale = ActivationScale::kTokenGroup;
  EXPECT_TRUE(refused(bad));
  bad = low_precision_matrix(kLowPrecisionCases[0], 1, 0x7fffffff / (128 * 255) + 1, numbers);
  EXPECT_TRUE(refused(bad));
  const QuantizedMatrix floats = low_precision_matrix(kLowPrecisionCases[11], 3, 16, numbers);
  EXPECT_FALSE(refused(floats));
  bad = floats, bad.scheme.activation_bits = 8;
  EXPECT_TRUE(refused(bad));
  bad = floats, bad.scheme.activation_scale = ActivationScale::kToken;
  EXPECT_TRUE(refused(bad));
  for (const float scale : {0.0f, -700.0f, HUGE_VALF, std::nanf(""), 1e37f}) {
    bad = floats, bad.input_scale = scale;
    EXPECT_TRUE(refused(bad)) << scale;
  }
}

// Widened INT16 pairs in 512 bits run only where the processor has no instruction for INT8, or here.
std::vector<BackendParam> low_precision_backends() {
  std::vector<BackendParam> params = backends({1, 2});
  params.push_back({"cpu_avx512_plain", 1});
  params.push_back({"cuda_float4", 1});
  params.push_back({"cuda_float4_tensor", 1});
  return params;
}

INSTANTIATE_TEST_SUITE_P(Every, LowPrecision, ::testing::ValuesIn(low_precision_backends()), param_name);
INSTANTIATE_TEST_SUITE_P(Every, DeviceLowPrecision,
                         ::testing::Values(BackendParam{"cuda_emulated", 1}, BackendParam{"cuda_float4", 1},
                                           BackendParam{"cuda_float4_tensor", 1}, BackendParam{"cuda", 1}),
                         param_name);

}  // namespace
}  // namespace llmq::testing
