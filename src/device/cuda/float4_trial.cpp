// Whether a device's products of E2M1 by E2M1 (kernels/cuda/float4_linear.h) are exact where FP32 can hold
// them, tried once when a backend is made and before anything is multiplied so.
//
// Codes, scales and inputs are such that every partial sum, in whatever order, is a multiple of a unit and
// less than 2^24 of it, so that a unit which adds in FP32 has no choice: another fragment, another scale, or
// fewer bits kept of a sum show. Both schemes, blocks of both shapes, sides that are no multiples of a tile,
// and a row with an input that is no number, which alone may be lost. Four products of 72 features and 176
// columns: microseconds.
#include "device/cuda/cuda_products.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "device/low_precision.h"
#include "kernels/common/code_value.h"
#include "tensor/block_scales.h"

namespace llmq {
namespace {

constexpr std::int64_t kTriedRows = 20, kTriedFewRows = 3, kTriedFeatures = 72, kTriedColumns = 176;
constexpr std::int64_t kLostRow = 1, kLostColumn = 100;

// A fixed stream of small numbers.
class SmallNumbers {
 public:
  std::uint32_t below(std::uint32_t limit) {
    state_ = state_ * 1664525u + 1013904223u;
    return (state_ >> 8) % limit;
  }

 private:
  std::uint32_t state_ = 1;
};

// One group of columns is much greater than the rest, so that sums need 20 bits and more: (6 * 16)^2 beside
// products of 1 / 16 (1 / 64 of E4M3). In another a small scale of the weight, a subnormal E4M3 number or a
// far exponent, meets a great one of the inputs.
float group_scale(std::int64_t group, bool two_levels, bool of_weight, SmallNumbers& numbers) {
  constexpr std::array<float, 4> kLevels = {0.5f, 0.75f, 1, 1.5f}, kPowers = {0.5f, 0.5f, 1, 2};
  const std::uint32_t i = numbers.below(4);
  if (group == 2) return 16;
  if (group == 3 && two_levels) return of_weight ? 0x1p-7f : 16;
  if (group == 3) return of_weight ? 0x1p-100f : 0x1p104f;
  return two_levels ? kLevels[i] : kPowers[i];
}

QuantizedMatrix trial_weight(int group, SmallNumbers& numbers) {
  QuantizedMatrix matrix;
  matrix.scheme.bits = matrix.scheme.activation_bits = 4;
  matrix.scheme.weight_type = WeightType::kFloat4;
  matrix.scheme.activation_scale = ActivationScale::kTokenGroup;
  matrix.scheme.granularity = Granularity::kGroup;
  matrix.scheme.group_size = group;
  matrix.scheme.symmetric = true;
  matrix.out_features = kTriedFeatures;
  matrix.in_features = kTriedColumns;
  const bool two_levels = matrix.scheme.scale_form() == ScaleForm::kTwoLevel;
  matrix.global_scale = matrix.input_scale = two_levels ? 1.0f : 0.0f;
  for (std::int64_t i = 0; i < kTriedFeatures * kTriedColumns; ++i)
    matrix.codes.push_back(static_cast<std::uint8_t>(numbers.below(16)));
  for (std::int64_t i = 0; i < kTriedFeatures * matrix.groups(); ++i) {
    matrix.scales.push_back(group_scale(i % matrix.groups(), two_levels, true, numbers));
    matrix.zeros.push_back(static_cast<std::uint8_t>(matrix.scheme.middle()));
  }
  return matrix;
}

// Inputs that rounding leaves as they are, but for one that is infinite.
std::vector<float> trial_inputs(const InputGroups& how, SmallNumbers& numbers) {
  std::vector<float> x;
  for (std::int64_t m = 0; m < kTriedRows; ++m)
    for (std::int64_t first = 0; first < kTriedColumns; first += how.size) {
      const float scale = group_scale(first / how.size, how.two_levels, false, numbers);
      for (std::int64_t k = first; k < std::min(kTriedColumns, first + how.size); ++k)
        x.push_back(e2m1_number(k == first ? 7 : numbers.below(16)) * scale);
    }
  x[static_cast<std::size_t>(kLostRow * kTriedColumns + kLostColumn)] =
      std::numeric_limits<float>::infinity();
  return x;
}

std::string fault_of_scheme(CudaWork& work, int group) {
  SmallNumbers numbers;
  const QuantizedMatrix matrix = trial_weight(group, numbers);
  const std::unique_ptr<CudaWeight> weight = code_weight(work.device(), matrix, Compute::kFloat32, true);
  const std::vector<float> inputs = trial_inputs(weight->inputs.groups, numbers);
  std::vector<double> levels;
  std::vector<BFloat16> row(static_cast<std::size_t>(kTriedColumns));
  for (std::int64_t n = 0; n < kTriedFeatures; ++n) {
    weight_levels(matrix, n, row.data());
    for (const BFloat16 level : row) levels.push_back(to_float(level));
  }
  const Buffer on_device = work.copy_of(std::span<const float>(inputs));
  for (const std::int64_t rows : {kTriedRows, kTriedFewRows}) {
    const Buffer results = work.scratch(static_cast<std::size_t>(rows * kTriedFeatures) * sizeof(float));
    multiply(work, results.view(DType::kF32, {rows, kTriedFeatures}),
             on_device.view(DType::kF32, {rows, kTriedColumns}), *weight, nullptr);
    const auto found = work.copy_back<float>(results, static_cast<std::size_t>(rows * kTriedFeatures));
    for (std::int64_t m = 0; m < rows; ++m)
      for (std::int64_t n = 0; n < kTriedFeatures; ++n) {
        double sum = m == kLostRow ? std::numeric_limits<double>::quiet_NaN() : 0;
        for (std::int64_t k = 0; k < kTriedColumns; ++k)
          sum += inputs[static_cast<std::size_t>(m * kTriedColumns + k)] *
                 levels[static_cast<std::size_t>(n * kTriedColumns + k)];
        const auto got = double{found[static_cast<std::size_t>(m * kTriedFeatures + n)]};
        if (got != sum && !(std::isnan(got) && std::isnan(sum)))
          return fmt::format(
              "a product of {} rows in groups of {} has {} where {} is exact (row {}, feature {})", rows,
              group, got, sum, m, n);
      }
  }
  return {};
}

}  // namespace

std::string float4_fault(CudaWork& work) {
  try {
    const std::string fault = fault_of_scheme(work, kNvfp4Group);
    return fault.empty() ? fault_of_scheme(work, kMxGroup) : fault;
  } catch (const Error& error) {  // a device that cannot start them, or has no memory for them
    if (error.kind() != ErrorKind::kDevice && error.kind() != ErrorKind::kResource) throw;
    return error.what();
  }
}

}  // namespace llmq
