// Codes of 4 bits beside inputs of 8 on every CPU level, to the bit of device/low_precision.h's arithmetic:
// at the extremes, where an INT16 holds the sums by a hair, and by every path of rows, widths and groups.
#include "backend_fixture.h"

namespace llmq::testing {
namespace {

struct NibbleCase {
  int bits;
  std::int64_t group;  // 0: one scale per channel
  bool symmetric;
  DType scales;
};

void PrintTo(const NibbleCase& c, std::ostream* out) {
  *out << "w" << c.bits << "a8_g" << c.group << (c.symmetric ? "_sym " : "_asym ")
       << dtype_row(c.scales).name;
}

constexpr NibbleCase kNibbleCases[] = {
    {4, 32, true, DType::kBF16},  {4, 32, false, DType::kF32}, {4, 64, true, DType::kF16},
    {4, 64, false, DType::kBF16}, {4, 128, true, DType::kF32}, {4, 128, false, DType::kF16},
    {4, 0, true, DType::kBF16},   {4, 0, false, DType::kF32},  {4, 12, false, DType::kBF16},
    {3, 48, true, DType::kBF16},  {2, 64, false, DType::kF16},
};

// Least: inputs and codes as far from one another as they can be; Most: as far and alike; Random.
enum class Extreme { kRandom, kLeast, kMost };

struct NibbleProblem {
  QuantizedMatrix matrix;
  std::vector<float> x;  // integers, which a calibrated scale of 1 leaves as they are
  std::vector<float> bias;
};

NibbleProblem nibble_problem(const NibbleCase& c, std::int64_t m, std::int64_t n, std::int64_t k,
                             Extreme extreme, bool with_bias) {
  Numbers numbers(static_cast<std::uint64_t>(m * 1000003 + n * 1009 + k));
  NibbleProblem problem;
  QuantizedMatrix& matrix = problem.matrix;
  matrix.scheme.bits = c.bits;
  matrix.scheme.activation_bits = 8;
  matrix.scheme.activation_scale = ActivationScale::kTensor;
  matrix.scheme.granularity = c.group == 0 ? Granularity::kChannel : Granularity::kGroup;
  if (c.group > 0) matrix.scheme.group_size = static_cast<int>(c.group);
  matrix.scheme.symmetric = c.symmetric;
  matrix.input_scale = 1;
  matrix.out_features = n;
  matrix.in_features = k;
  const auto top = static_cast<std::uint8_t>(matrix.scheme.code_count() - 1);
  const auto code_like = [&](Extreme wanted) {
    return wanted == Extreme::kRandom  ? static_cast<std::uint8_t>(numbers.below(matrix.scheme.code_count()))
           : wanted == Extreme::kLeast ? top
                                       : std::uint8_t{0};
  };
  for (std::int64_t i = 0; i < n * k; ++i) matrix.codes.push_back(code_like(extreme));
  for (std::int64_t i = 0; i < n * matrix.groups(); ++i) {
    matrix.scales.push_back(rounded(c.scales, {static_cast<float>(numbers.uniform() / 64 - 0.004)})[0]);
    const Extreme other = extreme == Extreme::kLeast  ? Extreme::kMost
                          : extreme == Extreme::kMost ? Extreme::kLeast
                                                      : Extreme::kRandom;
    matrix.zeros.push_back(c.symmetric ? static_cast<std::uint8_t>(matrix.scheme.middle())
                                       : code_like(other));
  }
  for (std::int64_t i = 0; i < m * k; ++i)
    problem.x.push_back(extreme == Extreme::kRandom  ? static_cast<float>(numbers.below(256)) - 128.0f
                        : extreme == Extreme::kLeast ? -128.0f
                                                     : 127.0f);
  if (with_bias) problem.bias = numbers.values(n, 0, 10);
  return problem;
}

std::vector<float> by_the_definition(const NibbleProblem& problem, std::int64_t m) {
  const QuantizedMatrix& matrix = problem.matrix;
  const std::int64_t k = matrix.in_features, groups = matrix.groups(), group = matrix.group();
  std::vector<float> y;
  for (std::int64_t r = 0; r < m; ++r)
    for (std::int64_t n = 0; n < matrix.out_features; ++n) {
      float sum = 0;
      for (std::int64_t g = 0; g < groups; ++g) {
        const auto index = static_cast<std::size_t>(n * groups + g);
        std::int64_t exact = 0;
        for (std::int64_t i = g * group; i < (g + 1) * group; ++i)
          exact += static_cast<std::int64_t>(problem.x[static_cast<std::size_t>(r * k + i)]) *
                   (matrix.codes[static_cast<std::size_t>(n * k + i)] - matrix.zeros[index]);
        const auto term = static_cast<float>(exact);
        sum = g == 0 ? term * matrix.scales[index] : std::fma(term, matrix.scales[index], sum);
      }
      y.push_back(problem.bias.empty() ? sum
                                       : std::fma(sum, 1.0f, problem.bias[static_cast<std::size_t>(n)]));
    }
  return y;
}

class NibbleWeight : public BackendTest {
 protected:
  void check(const NibbleCase& c, std::int64_t m, std::int64_t n, std::int64_t k, Extreme extreme) {
    SCOPED_TRACE(
        fmt::format("{} M {} N {} K {} {}", ::testing::PrintToString(c), m, n, k, static_cast<int>(extreme)));
    const NibbleProblem problem = nibble_problem(c, m, n, k, extreme, (m + n) % 2 == 0);
    const auto weight = backend().prepare_quantized(problem.matrix, Compute::kFloat32);
    ASSERT_TRUE(
        same_bits(linear_on(backend(), *weight, m, problem.x, problem.bias), by_the_definition(problem, m)));
  }
};

TEST_P(NibbleWeight, HasTheBitsOfTheDefinition) {
  for (const NibbleCase& c : kNibbleCases) {
    const std::int64_t k = c.group == 0 ? 385 : 3 * c.group;
    std::int64_t n = 1;
    for (const std::int64_t m : {1, 2, 3, 4, 5, 7, 8, 11, 12, 15, 16, 17, 33, 97}) {
      check(c, m, n, k, Extreme::kRandom);
      n = n * 2 % 67 + 3;
    }
    for (const std::int64_t m : {1, 2, 16, 35})
      for (const Extreme extreme : {Extreme::kLeast, Extreme::kMost}) check(c, m, 70, k, extreme);
  }
}

// More columns and rows than an item has.
TEST_P(NibbleWeight, HasThemInAModelsShapes) {
  check(kNibbleCases[2], 1, 1100, 576, Extreme::kRandom);
  check(kNibbleCases[3], 100, 600, 1536, Extreme::kRandom);
  check(kNibbleCases[6], 3, 100, 5000, Extreme::kLeast);
}

// Half a byte a weight, and the scales of the groups beside it.
TEST_P(NibbleWeight, TakesFourBitsAWeight) {
  const std::int64_t n = 640, k = 1024;
  const NibbleProblem problem = nibble_problem(kNibbleCases[2], 1, n, k, Extreme::kRandom, false);
  const auto weight = backend().prepare_quantized(problem.matrix, Compute::kFloat32);
  EXPECT_EQ(weight->bytes, static_cast<std::size_t>(n * k / 2 + n * k / 64 * 2));
  EXPECT_EQ(weight->kernel, "int8 products of 4-bit codes");
}

// Eight codes to a word on one side, four on the other: their inputs are not padded alike.
TEST_P(NibbleWeight, SharesNoRowsWithCodesThatArePaddedOtherwise) {
  const std::int64_t m = 3, n = 20, k = 36;
  NibbleProblem narrow = nibble_problem(kNibbleCases[8], m, n, k, Extreme::kRandom, false), wide = narrow;
  wide.matrix.scheme.bits = 8;
  const Placed x = put(backend(), DType::kF32, {m, k}, narrow.x);
  for (const bool swapped : {false, true}) {
    const auto first = backend().prepare_quantized((swapped ? wide : narrow).matrix, Compute::kFloat32),
               second = backend().prepare_quantized((swapped ? narrow : wide).matrix, Compute::kFloat32);
    const Placed y = poisoned(backend(), DType::kF32, {m, n}), z = poisoned(backend(), DType::kF32, {m, n});
    const LinearCall calls[] = {{y.view, x.view, first.get(), {}}, {z.view, x.view, second.get(), {}}};
    backend().linears(calls);
    EXPECT_TRUE(same_bits(get(backend(), y.view), by_the_definition(narrow, m)));
    EXPECT_TRUE(same_bits(get(backend(), z.view), by_the_definition(narrow, m)));
  }
}

std::vector<BackendParam> nibble_backends() {
  std::vector<BackendParam> params;
  for (const BackendParam& param : backends({1, 2}))
    if (param.name.rfind("cpu_", 0) == 0) params.push_back(param);
  params.push_back({"cpu_avx512_plain", 2});
  return params;
}

INSTANTIATE_TEST_SUITE_P(Every, NibbleWeight, ::testing::ValuesIn(nibble_backends()), param_name);

}  // namespace
}  // namespace llmq::testing
