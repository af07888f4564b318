// Norm, rope, activation, embedding, KV store, add, convert on every backend.
#include <algorithm>

#include "backend_fixture.h"

namespace llmq::testing {
namespace {

// exp in FP32 is good to 4 units in the last place (2^-23 each) on every backend: the contract of
// kernels/cpu.
constexpr double kExpError = 4 * 0x1p-23;

class Elementwise : public BackendTest {};

TEST_P(Elementwise, RmsNorm) {
  for (const std::int64_t width : {1, 2, 3, 15, 16, 17, 63, 64, 65, 576, 577})
    for (const double scale : {1.0, 0x1p-40, 0x1p40}) {
      Numbers numbers(static_cast<std::uint64_t>(width));
      const std::int64_t rows = 5;
      const std::vector<float> x = numbers.values(rows * width, 0, scale), gain = numbers.values(width);
      const float eps = 1e-5f;
      const auto run = [&](Backend& backend, DType dtype) {
        const Placed in = put(backend, DType::kF32, {rows, width}, x),
                     g = put(backend, DType::kF32, {width}, gain);
        const Placed out = poisoned(backend, dtype, {rows, width});
        backend.rms_norm(out.view, in.view, g.view, eps);
        return get(backend, out.view);
      };
      const std::vector<float> want = run(oracle(), DType::kF32);
      std::vector<double> bound, bound_bf16;
      for (const float value : want) {
        bound.push_back(fp32_rms_norm_bound(width, value) + fp32_rounding_bound(value));
        bound_bf16.push_back(bound.back() + bf16_rounding_bound(std::fabs(value) + bound.back()));
      }
      std::vector<float> got = run(backend(), DType::kF32);
      ASSERT_EQ(outside(got, widened(want), bound), "") << width << " x " << scale;
      ASSERT_EQ(outside(run(backend(), DType::kBF16), widened(want), bound_bf16), "")
          << width << " x " << scale;
      got[0] *= 1 + 1e-3f;
      EXPECT_NE(outside(got, widened(want), bound), "");
      // In place.
      const Placed in = put(backend(), DType::kF32, {rows, width}, x),
                   g = put(backend(), DType::kF32, {width}, gain);
      backend().rms_norm(in.view, in.view, g.view, eps);
      EXPECT_TRUE(same_bits(get(backend(), in.view), run(backend(), DType::kF32)));
    }
}

TEST_P(Elementwise, Rope) {
  for (const std::int64_t dim : {2, 4, 6, 16, 34, 64, 128}) {
    const std::int64_t tokens = 7, heads = 3, positions = 11, half = dim / 2;
    Numbers numbers(static_cast<std::uint64_t>(dim));
    const std::vector<float> x = numbers.values(tokens * heads * dim),
                             angles = numbers.values(positions * half, 0, 3.2);
    std::vector<float> c, s;
    for (const float angle : angles) {
      c.push_back(std::cos(angle));
      s.push_back(std::sin(angle));
    }
    const std::vector<std::int32_t> at = {0, 10, 3, 3, 9, 1, 7};
    const auto run = [&](Backend& backend) {
      const Placed in = put(backend, DType::kF32, {tokens, heads, dim}, x);
      const Placed cosines = put(backend, DType::kF32, {positions, half}, c),
                   sines = put(backend, DType::kF32, {positions, half}, s);
      backend.rope(in.view, at, cosines.view, sines.view);
      return get(backend, in.view);
    };
    const std::vector<float> want = run(oracle());
    std::vector<double> bound;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t row = i / static_cast<std::size_t>(dim), pair = i % static_cast<std::size_t>(half);
      const std::size_t first = row * static_cast<std::size_t>(dim) + pair;
      const std::size_t angle =
          static_cast<std::size_t>(at[row / static_cast<std::size_t>(heads)] * half) + pair;
      const double a = std::fabs(x[first]), b = std::fabs(x[first + static_cast<std::size_t>(half)]);
      const double cosine = std::fabs(c[angle]), sine = std::fabs(s[angle]);
      const double sum = i % static_cast<std::size_t>(dim) < static_cast<std::size_t>(half)
                             ? a * cosine + b * sine
                             : b * cosine + a * sine;
      bound.push_back(fp32_dot_bound(2, sum) + fp32_rounding_bound(want[i]));
    }
    std::vector<float> got = run(backend());
    ASSERT_EQ(outside(got, widened(want), bound), "") << dim;
    got.back() += 1e-4f;
    EXPECT_NE(outside(got, widened(want), bound), "");
  }
}

TEST_P(Elementwise, GatedActivation) {
  for (const Activation act : {Activation::kSilu, Activation::kGeluTanh})
    for (const std::int64_t width : {1, 3, 16, 17, 65, 1537}) {
      const std::int64_t rows = 3;
      Numbers numbers(static_cast<std::uint64_t>(width));
      std::vector<float> gate = numbers.values(rows * width, 0, 12);
      gate[0] = -300.0f;  // exp leaves FP32's range
      gate.back() = 300.0f;
      const std::vector<float> up = numbers.values(rows * width, 4);
      const auto run = [&](Backend& backend, DType dtype) {
        const Placed g = put(backend, DType::kF32, {rows, width}, gate),
                     u = put(backend, DType::kF32, {rows, width}, up);
        const Placed out = poisoned(backend, dtype, {rows, width});
        backend.gated_activation(out.view, g.view, u.view, act);
        return get(backend, out.view);
      };
      const std::vector<float> want = run(oracle(), DType::kF32);
      std::vector<double> bound, bound_bf16;
      for (std::size_t i = 0; i < want.size(); ++i) {
        // silu: one exp, three operations, relative; where exp saturates (|g| > 87) both sides are below |g
        // u| 2^-124. gelu: 1 + tanh cancels for g < 0, so relative to |g u| / 2: tanh by one exp of 2t, where
        // t is off by gamma(6) of itself and t tanh'(t) < 0.45, and a handful of operations.
        const double product = std::fabs(static_cast<double>(gate[i]) * static_cast<double>(up[i]));
        const double relative = kExpError + gamma(4);
        const double error = act == Activation::kSilu ? relative * std::fabs(want[i]) + product * 0x1p-124
                                                      : 0.5 * product * (2 * kExpError + gamma(6) + gamma(8));
        bound.push_back(error + fp32_rounding_bound(want[i]));
        bound_bf16.push_back(bound.back() + bf16_rounding_bound(std::fabs(want[i]) + bound.back()));
      }
      ASSERT_EQ(outside(run(backend(), DType::kF32), widened(want), bound), "") << width;
      ASSERT_EQ(outside(run(backend(), DType::kBF16), widened(want), bound_bf16), "") << width;
      std::vector<float> planted = want;
      planted.back() *= 1 + 1e-4f;
      EXPECT_NE(outside(planted, widened(want), bound), "");
    }
}

// One rounding of an exact value (a + b of two FP32 in double rounds innocently): the same bits everywhere.
TEST_P(Elementwise, ExactOperations) {
  Numbers numbers(11);
  const std::int64_t rows = 6, width = 67;
  const std::vector<float> a = numbers.values(rows * width, 8), b = numbers.values(rows * width, 8);
  const auto added = [&](Backend& backend) {
    const Placed into = put(backend, DType::kF32, {rows, width}, a),
                 x = put(backend, DType::kF32, {rows, width}, b);
    backend.add(into.view, x.view);
    return get(backend, into.view);
  };
  EXPECT_TRUE(same_bits(added(backend()), added(oracle())));

  const Placed f32 = put(backend(), DType::kF32, {rows, width}, a);
  const Placed bf16 = poisoned(backend(), DType::kBF16, {rows, width}),
               back = poisoned(backend(), DType::kF32, {rows, width});
  backend().convert(bf16.view, f32.view);
  backend().convert(back.view, bf16.view);
  EXPECT_TRUE(same_bits(get(backend(), back.view), rounded(DType::kBF16, a)));

  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Placed table = put(backend(), dtype, {rows, width}, a),
                 out = poisoned(backend(), DType::kF32, {4, width});
    const std::vector<std::int32_t> ids = {5, 0, 3, 5};
    backend().embed(out.view, table.view, ids);
    const std::vector<float> stored = rounded(dtype, a), got = get(backend(), out.view);
    std::vector<float> want;
    for (const std::int32_t id : ids)
      want.insert(want.end(), stored.begin() + id * width, stored.begin() + (id + 1) * width);
    EXPECT_TRUE(same_bits(got, want)) << dtype_row(dtype).name;
  }
}

TEST_P(Elementwise, StoreKv) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::int64_t blocks = 3, kv_heads = 2, dim = 17;
    const int block_size = 19;  // a tile of 16 positions and three
    Numbers numbers(12);
    const std::vector<std::int64_t> slots = {56, 0, 35};
    const std::vector<float> k = numbers.values(3 * kv_heads * dim), v = numbers.values(3 * kv_heads * dim);
    const auto run = [&](Backend& backend) {
      const Shape shape{blocks, block_size, kv_heads, dim};
      const std::vector<float> zeros(static_cast<std::size_t>(shape.elements()));
      const Placed keys = put(backend, dtype, shape, zeros), values = put(backend, dtype, shape, zeros);
      const Placed k_in = put(backend, DType::kF32, {3, kv_heads, dim}, k),
                   v_in = put(backend, DType::kF32, {3, kv_heads, dim}, v);
      backend.store_kv({keys.view, values.view, block_size}, k_in.view, v_in.view, slots);
      // The order inside a block is the backend's own (tests of attention hold it to it).
      std::vector<float> all = get(backend, keys.view);
      const std::vector<float> more = get(backend, values.view);
      all.insert(all.end(), more.begin(), more.end());
      const std::ptrdiff_t block = block_size * kv_heads * dim;
      for (auto at = all.begin(); at != all.end(); at += block) std::sort(at, at + block);
      const Placed k_out = poisoned(backend, DType::kF32, {3, kv_heads, dim}),
                   v_out = poisoned(backend, DType::kF32, {3, kv_heads, dim});
      backend.load_kv(k_out.view, v_out.view, {keys.view, values.view, block_size}, slots);
      EXPECT_TRUE(same_bits(get(backend, k_out.view), rounded(dtype, k)));
      EXPECT_TRUE(same_bits(get(backend, v_out.view), rounded(dtype, v)));
      return all;
    };
    EXPECT_TRUE(same_bits(run(backend()), run(oracle())));
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Elementwise, ::testing::ValuesIn(backends({1, 2})), param_name);

}  // namespace
}  // namespace llmq::testing
