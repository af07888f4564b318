// A device's products of E2M1 by E2M1 are tried before they are used: those that are exact are taken, those
// that are not leave the kernels of E2M1 by BF16, with their bits, and say why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/half.h"
#include "device/cuda/cuda_backend.h"
#include "tensor/block_scales.h"

namespace llmq {
namespace {

using cuda::Float4Arguments;

QuantizedMatrix float4_matrix(int group) {
  QuantizedMatrix matrix;
  matrix.scheme.bits = matrix.scheme.activation_bits = 4;
  matrix.scheme.weight_type = WeightType::kFloat4;
  matrix.scheme.activation_scale = ActivationScale::kTokenGroup;
  matrix.scheme.granularity = Granularity::kGroup;
  matrix.scheme.group_size = group;
  matrix.scheme.symmetric = true;
  matrix.out_features = 40, matrix.in_features = 96;
  if (group == kNvfp4Group) matrix.global_scale = 3000, matrix.input_scale = 700;
  for (int i = 0; i < 40 * 96; ++i) matrix.codes.push_back(static_cast<std::uint8_t>(i * 7 % 16));
  for (int i = 0; i < 40 * 96 / group; ++i) {
    matrix.scales.push_back(group == kNvfp4Group
                                ? nvfp4_scale(static_cast<std::uint8_t>(1 + i % 126), matrix.global_scale)
                                : std::ldexp(1.0f, i % 5));
    matrix.zeros.push_back(static_cast<std::uint8_t>(matrix.scheme.middle()));
  }
  return matrix;
}

struct Float4Run {
  std::vector<float> y;
  std::string kernel;
};

Float4Run run_float4(Backend& backend, int group) {
  const auto weight = backend.prepare_quantized(float4_matrix(group), Compute::kFloat32);
  std::vector<float> x;
  for (int i = 0; i < 3 * 96; ++i) x.push_back(std::sin(static_cast<float>(i)));
  const Buffer input = backend.allocate(x.size() * 4), output = backend.allocate(3 * 40 * 4);
  backend.upload(input.view(DType::kF32, {3, 96}), x.data());
  backend.linear(output.view(DType::kF32, {3, 40}), input.view(DType::kF32, {3, 96}), *weight, {});
  Float4Run run{std::vector<float>(3 * 40), weight->kernel};
  backend.download(run.y.data(), output.view(DType::kF32, {3, 40}));
  return run;
}

std::shared_ptr<Backend> float4_backend(cuda::Float4Launch launch) {
  EmulatedDeviceSpec spec;
  spec.float4_linear = launch;
  return make_emulated_cuda_backend(1, spec);
}

TEST(Float4Trial, ExactProductsAreTaken) {
  for (const cuda::Float4Launch launch : {cuda::emulate_float4, cuda::emulate_float4_tensor}) {
    const auto backend = float4_backend(launch);
    EXPECT_EQ(backend->arithmetic(), "cuda emulated, E2M1 by E2M1");
    for (const int group : {kNvfp4Group, kMxGroup})
      EXPECT_EQ(run_float4(*backend, group).kernel, "e2m1 codes by e2m1 codes");
    EXPECT_EQ(backend->slower_than_possible(), "");
  }
}

TEST(Float4Trial, ADeviceWithoutThemSaysNothing) {
  const auto backend = float4_backend(nullptr);
  EXPECT_EQ(backend->arithmetic(), "cuda emulated");
  EXPECT_EQ(run_float4(*backend, kNvfp4Group).kernel, "e2m1 codes in fragments");
  EXPECT_EQ(backend->slower_than_possible(), "");
}

// Products of another device: `change` is made of each result, row by row.
template <class Change>
int changed(const Float4Arguments& a, void* stream, const Change& change) {
  const int code = cuda::emulate_float4(a, stream);
  for (std::int64_t m = 0; m < a.rows; ++m)
    for (std::int64_t n = 0; n < a.features; ++n) {
      float& number = a.y[m * a.y_stride + n];
      number = change(m, n, number);
    }
  return code;
}

int one_element_off(const Float4Arguments& a, void* stream) {
  return changed(a, stream, [&](std::int64_t m, std::int64_t n, float y) {
    return m == a.rows - 1 && n == a.features - 1 ? y + 0.25f : y;
  });
}
int few_bits_kept(const Float4Arguments& a, void* stream) {  // as units that align 14 bits of a sum
  return changed(a, stream, [](std::int64_t, std::int64_t, float y) {
    return float_from_bits(bits_from_float(y) & ~((1u << 10) - 1));
  });
}
int nan_unknown(const Float4Arguments& a, void* stream) {
  return changed(a, stream, [](std::int64_t, std::int64_t, float y) { return std::isnan(y) ? 0.0f : y; });
}
int exponents_alone_wrong(const Float4Arguments& a, void* stream) {
  return changed(a, stream, [&](std::int64_t, std::int64_t, float y) { return a.exponents ? 2 * y : y; });
}
int small_blocks_wrong(const Float4Arguments& a, void* stream) {
  return changed(a, stream, [&](std::int64_t, std::int64_t, float y) { return a.rows <= 16 ? -y : y; });
}
int scales_of_a_neighbour(const Float4Arguments& a, void* stream) {
  if (a.exponents) return cuda::emulate_float4(a, stream);
  const auto count = static_cast<std::size_t>(a.positions / 64 * cuda::padded_scales(a.rows));
  const Buffer scales(host_memory(), count * sizeof(std::uint32_t));
  std::copy_n(a.x_scales, count, scales.as<std::uint32_t>());
  std::swap(scales.as<std::uint32_t>()[0], scales.as<std::uint32_t>()[2]);
  Float4Arguments other = a;
  other.x_scales = scales.as<std::uint32_t>();
  return cuda::emulate_float4(other, stream);
}
int small_levels_lost(const Float4Arguments& a, void* stream) {  // as units that know no subnormal E4M3
  if (a.exponents) return cuda::emulate_float4(a, stream);
  const auto count = static_cast<std::size_t>(a.positions / 64 * ((a.features + 63) / 64 * 64));
  const Buffer scales(host_memory(), count * sizeof(std::uint32_t));
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t word = a.weight_scales[i];
    for (int byte = 0; byte < 4; ++byte)
      if ((word >> (8 * byte) & 0xff) < 8) word &= ~(0xffu << (8 * byte));
    scales.as<std::uint32_t>()[i] = word;
  }
  Float4Arguments other = a;
  other.weight_scales = scales.as<std::uint32_t>();
  return cuda::emulate_float4(other, stream);
}
int never_arrived(const Float4Arguments& a, void* stream) {  // as tensor memory that is not waited for
  return changed(a, stream, [](std::int64_t, std::int64_t, float) { return std::nanf(""); });
}
int refused_launch(const Float4Arguments&, void*) { return 209; }

TEST(Float4Trial, OthersAreNotTakenAndSayWhy) {
  const auto plain = float4_backend(nullptr);
  for (const cuda::Float4Launch launch :
       {one_element_off, few_bits_kept, nan_unknown, exponents_alone_wrong, small_blocks_wrong,
        scales_of_a_neighbour, small_levels_lost, never_arrived, refused_launch}) {
    const auto backend = float4_backend(launch);
    EXPECT_EQ(backend->arithmetic(), "cuda emulated");
    for (const int group : {kNvfp4Group, kMxGroup}) {
      const Float4Run run = run_float4(*backend, group), own = run_float4(*plain, group);
      EXPECT_EQ(run.kernel, "e2m1 codes in fragments");
      EXPECT_EQ(run.y, own.y);
    }
    EXPECT_THAT(backend->slower_than_possible(),
                ::testing::StartsWith(
                    "cuda (emulated): products of E2M1 by E2M1 have the kernels of E2M1 by BF16: "));
  }
  EXPECT_THAT(float4_backend(one_element_off)->slower_than_possible(),
              ::testing::EndsWith("is exact (row 19, feature 71)"));
}

}  // namespace
}  // namespace llmq
