// Norms, rope, activations, embedding, KV store, add, convert on every backend.
#include <algorithm>
#include <iterator>

#include "backend_fixture.h"

namespace llmq::testing {
namespace {

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

TEST_P(Elementwise, LayerNorm) {
  for (const std::int64_t width : {1, 2, 3, 15, 16, 17, 63, 64, 65, 576, 577})
    for (const double scale : {1.0, 0x1p-40, 0x1p40})
      for (const bool has_bias : {true, false}) {
        Numbers numbers(static_cast<std::uint64_t>(width));
        const std::int64_t rows = 5;
        std::vector<float> x = numbers.values(rows * width, 0, scale);
        for (float& value : x) value += static_cast<float>(2 * scale);  // a mean that has to go
        const std::vector<float> gain = numbers.values(width), bias = numbers.values(width);
        const float eps = 1e-5f;
        const auto run = [&](Backend& backend, DType dtype, bool in_place = false) {
          const Placed in = put(backend, DType::kF32, {rows, width}, x),
                       g = put(backend, DType::kF32, {width}, gain),
                       b = put(backend, DType::kF32, {width}, bias);
          const Placed out = poisoned(backend, dtype, {rows, width});
          const TensorView to = in_place ? in.view : out.view;
          backend.layer_norm(to, in.view, g.view, has_bias ? b.view : TensorView{}, eps);
          return get(backend, to);
        };
        const std::vector<float> want = run(oracle(), DType::kF32);
        std::vector<double> bound, bound_bf16;
        for (std::size_t i = 0; i < want.size(); ++i) {
          const auto at = i % static_cast<std::size_t>(width);
          const float* const row = x.data() + (i - at);
          double sum = 0, magnitude = 0, squares = 0;
          for (std::int64_t c = 0; c < width; ++c) sum += row[c], magnitude += std::fabs(row[c]);
          const auto n = static_cast<double>(width), mean = sum / n;
          for (std::int64_t c = 0; c < width; ++c) squares += (row[c] - mean) * (row[c] - mean);
          const double root = std::sqrt(squares / n + static_cast<double>(eps));
          const double normed = (row[at] - mean) / root, shift = has_bias ? bias[at] : 0;
          ASSERT_NEAR(want[i], normed * gain[at] + shift, 1e-6);
          bound.push_back(fp32_layer_norm_bound(width, magnitude / n, root, normed, gain[at], shift) +
                          fp32_rounding_bound(want[i]));
          bound_bf16.push_back(bound.back() + bf16_rounding_bound(std::fabs(want[i]) + bound.back()));
        }
        const auto where = ::testing::Message() << width << " x " << scale << (has_bias ? " with bias" : "");
        std::vector<float> got = run(backend(), DType::kF32);
        ASSERT_EQ(outside(got, widened(want), bound), "") << where;
        ASSERT_EQ(outside(run(backend(), DType::kBF16), widened(want), bound_bf16), "") << where;
        EXPECT_TRUE(same_bits(run(backend(), DType::kF32, true), got)) << where;
        if (width < 15) continue;
        got[0] += 1e-3f;
        EXPECT_NE(outside(got, widened(want), bound), "") << where;
      }
}

// Each head has a gain of its own: what a call for its rows alone gives.
TEST_P(Elementwise, LayerNormOfHeads) {
  for (const std::int64_t width : {2, 17, 128}) {
    const std::int64_t tokens = 5, heads = 3;
    Numbers numbers(static_cast<std::uint64_t>(width));
    const std::vector<float> x = numbers.values(tokens * heads * width), gain = numbers.values(heads * width);
    const Placed in = put(backend(), DType::kF32, {tokens * heads, width}, x),
                 all = put(backend(), DType::kF32, {heads, width}, gain),
                 out = poisoned(backend(), DType::kF32, {tokens * heads, width});
    backend().layer_norm(out.view, in.view, all.view, {}, 1e-5f);
    const std::vector<float> got = get(backend(), out.view);
    for (std::int64_t row = 0; row < tokens * heads; ++row) {
      const std::int64_t head = row % heads;
      const Placed own = put(backend(), DType::kF32, {1, width}, rows_of(x, row, 1, width)),
                   of_head = put(backend(), DType::kF32, {width}, rows_of(gain, head, 1, width)),
                   alone = poisoned(backend(), DType::kF32, {1, width});
      backend().layer_norm(alone.view, own.view, of_head.view, {}, 1e-5f);
      ASSERT_TRUE(same_bits(rows_of(got, row, 1, width), get(backend(), alone.view))) << width << " " << row;
    }
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
      backend.rope(in.view, at, cosines.view, sines.view, RopePairs::kHalves);
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

// Where neighbours are pairs, the bits are those of halves in another order.
TEST_P(Elementwise, RopeOfNeighbours) {
  for (const std::int64_t dim : {2, 4, 6, 16, 34, 64, 128})
    for (const std::int64_t beside : {0, 5}) {  // channels of a head that do not turn
      const std::int64_t tokens = 3, heads = 2, positions = 5, half = dim / 2, width = dim + beside;
      Numbers numbers(static_cast<std::uint64_t>(dim));
      const std::vector<float> x = numbers.values(tokens * heads * width),
                               c = numbers.values(positions * half), s = numbers.values(positions * half);
      const auto place = [&](std::int64_t head, std::int64_t channel) {
        return static_cast<std::size_t>(head * width + channel);
      };
      std::vector<float> apart = x;
      for (std::int64_t head = 0; head < tokens * heads; ++head)
        for (std::int64_t i = 0; i < dim; ++i) apart[place(head, i % 2 * half + i / 2)] = x[place(head, i)];
      const auto run = [&](const std::vector<float>& values, RopePairs pairs) {
        const Placed in = put(backend(), DType::kF32, {tokens, heads, width}, values);
        const Placed cosines = put(backend(), DType::kF32, {positions, half}, c),
                     sines = put(backend(), DType::kF32, {positions, half}, s);
        TensorView turned = in.view;
        turned.shape = Shape{tokens, heads, dim};
        turned.row_stride = width;
        backend().rope(turned, std::vector<std::int32_t>{4, 0, 2}, cosines.view, sines.view, pairs);
        return get(backend(), in.view);
      };
      const std::vector<float> want = run(apart, RopePairs::kHalves), got = run(x, RopePairs::kNeighbours);
      for (std::int64_t head = 0; head < tokens * heads; ++head)
        for (std::int64_t i = 0; i < width; ++i)
          ASSERT_EQ(got[place(head, i)], want[place(head, i < dim ? i % 2 * half + i / 2 : i)])
              << dim << ", " << beside << ": head " << head << ", channel " << i;
      EXPECT_NE(got, x);
    }
}

// The error of act(x) in FP32, `value` being the exact one and what multiplies it last (a gate's up)
// included. silu: one exp, four operations, relative; where exp saturates (|x| > 87) both sides are below |x|
// 2^-124. The GELUs cancel for x < 0, so relative to |x| / 2. By tanh: one exp of 2t, where t is off by
// gamma(6) of itself and t tanh'(t) < 0.45, and a handful of operations. By erfc: 1.5e-7 of Hastings' form,
// whose five partial sums are below 1.5 each: gamma(18) for their roundings and those of its numbers and of
// t; or an erfc of 4 units in the last place of at most 2; and a handful of operations.
// The clamped SwiGLU is a silu whose exponent has a product of its own before it, and a sum in what it
// multiplies.
double activation_bound(Activation act, double gate, double x, double value) {
  switch (act) {
    case Activation::kSilu:
      return (kExpError + gamma(4)) * std::fabs(value) + std::fabs(x) * 0x1p-124;
    case Activation::kGeluTanh:
      return 0.5 * std::fabs(x) * (2 * kExpError + gamma(6) + gamma(8));
    case Activation::kGelu:
      return 0.5 * std::fabs(x) * (1.5e-7 + gamma(18) + 2 * kExpError + gamma(8));
    case Activation::kRelu:
      return 0;
    case Activation::kSigmoid:
      return (kExpError + gamma(4)) * std::fabs(value) + 0x1p-124;
    case Activation::kClampedSwiglu:
      return (kExpError + gamma(6) + gamma(3) * std::fabs(1.702 * gate)) * std::fabs(value) +
             (std::fabs(x) + std::fabs(gate)) * 0x1p-124;
  }
  return 0;
}

constexpr Activation kAll[] = {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu,
                               Activation::kRelu, Activation::kSigmoid,  Activation::kClampedSwiglu};
static_assert(std::size(kAll) == kActivations);

TEST_P(Elementwise, Activations) {
  for (const Activation act : kAll)
    for (const bool gated : {true, false})
      for (const std::int64_t width : {1, 3, 16, 17, 65, 1537}) {
        const std::int64_t rows = 3;
        Numbers numbers(static_cast<std::uint64_t>(width));
        std::vector<float> gate = numbers.values(rows * width, 0, 12);
        gate[0] = -300.0f;  // exp leaves FP32's range
        gate.back() = 300.0f;
        std::vector<float> up = numbers.values(rows * width, 4);
        if (!gated) up.assign(up.size(), 1.0f);
        const auto run = [&](Backend& backend, DType dtype) {
          const Placed g = put(backend, DType::kF32, {rows, width}, gate),
                       u = put(backend, DType::kF32, {rows, width}, up);
          const Placed out = poisoned(backend, dtype, {rows, width});
          if (gated)
            backend.gated_activation(out.view, g.view, u.view, act);
          else
            backend.activate(out.view, g.view, act);
          return get(backend, out.view);
        };
        const std::vector<float> want = run(oracle(), DType::kF32);
        std::vector<double> bound, bound_bf16;
        for (std::size_t i = 0; i < want.size(); ++i) {
          const double product = static_cast<double>(gate[i]) * static_cast<double>(up[i]);
          bound.push_back(activation_bound(act, gate[i], product, want[i]) + fp32_rounding_bound(want[i]));
          bound_bf16.push_back(bound.back() + bf16_rounding_bound(std::fabs(want[i]) + bound.back()));
        }
        const auto where = ::testing::Message() << static_cast<int>(act) << " " << gated << " " << width;
        ASSERT_EQ(outside(run(backend(), DType::kF32), widened(want), bound), "") << where;
        ASSERT_EQ(outside(run(backend(), DType::kBF16), widened(want), bound_bf16), "") << where;
        std::vector<float> planted = want;
        planted.back() *= 1 + 1e-4f;
        EXPECT_NE(outside(planted, widened(want), bound), "") << where;
      }
}

// The quotient, tanh to 3e-7 (kernels/cpu/ops/exponential.h) and the product, all relative: tanh's own
// argument is off by x tanh'(x) / tanh(x) <= 1 of itself.
TEST_P(Elementwise, Softcap) {
  for (const float cap : {0.3f, 5.0f, 30.0f})
    for (const std::int64_t width : {1, 3, 16, 17, 1537}) {
      const std::int64_t rows = 3;
      Numbers numbers(static_cast<std::uint64_t>(width));
      std::vector<float> x = numbers.values(rows * width, 3, 8);
      x[0] = 3e38f, x.back() = -3e38f, x[static_cast<std::size_t>(width)] = 1e-20f;
      const auto run = [&](Backend& backend) {
        const Placed placed = put(backend, DType::kF32, {rows, width}, x);
        backend.softcap(placed.view, cap);
        return get(backend, placed.view);
      };
      const std::vector<float> want = run(oracle());
      std::vector<double> bound;
      for (const float value : want)
        bound.push_back((3e-7 + gamma(4)) * std::fabs(static_cast<double>(value)));
      ASSERT_EQ(outside(run(backend()), widened(want), bound), "") << cap << " " << width;
      std::vector<float> planted = want;
      planted.back() *= 1 + 1e-5f;
      EXPECT_NE(outside(planted, widened(want), bound), "");
    }
}

// ReLU rounds nothing; what it writes over its input is what it writes elsewhere; a NaN stays one.
TEST_P(Elementwise, ActivationInPlace) {
  const std::vector<float> x = {-1.5f, 0.0f, 2.25f, -300.0f, std::nanf(""), 7.0f};
  for (const Activation act : kAll) {
    const Placed in = put(backend(), DType::kF32, {2, 3}, x), out = poisoned(backend(), DType::kF32, {2, 3});
    backend().activate(out.view, in.view, act);
    backend().activate(in.view, in.view, act);
    const std::vector<float> got = get(backend(), in.view);
    EXPECT_TRUE(same_bits(got, get(backend(), out.view)));
    EXPECT_TRUE(std::isnan(got[4]));
    if (act != Activation::kRelu) continue;
    EXPECT_EQ(std::vector<float>(got.begin(), got.begin() + 4), (std::vector<float>{0, 0, 2.25f, 0}));
  }
}

// One rounding of an exact value (a + b of two FP32 in double rounds innocently): the same bits everywhere.
TEST_P(Elementwise, ExactOperations) {
  Numbers numbers(11);
  const std::int64_t rows = 6, width = 67;
  const std::vector<float> a = numbers.values(rows * width, 8), b = numbers.values(rows * width, 8);
  const auto added = [&](Backend& backend, float scale) {
    const Placed into = put(backend, DType::kF32, {rows, width}, a),
                 x = put(backend, DType::kF32, {rows, width}, b);
    backend.add(into.view, x.view, scale);
    return get(backend, into.view);
  };
  std::vector<float> sums(a.size()), scaled(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    sums[i] = a[i] + b[i];
    const float product = 0.22f * b[i];  // rounded before the sum
    scaled[i] = a[i] + product;
  }
  for (Backend* const each : {&backend(), &oracle()}) {
    EXPECT_TRUE(same_bits(added(*each, 1), sums));
    EXPECT_TRUE(same_bits(added(*each, 0.22f), scaled));
  }

  const std::vector<std::int32_t> places = {1, 2, 5};
  const std::vector<float> scales = {0.22f, -1.5f, 1.0f};
  std::vector<float> to_rows = a;
  for (std::size_t i = 0; i < places.size(); ++i)
    for (std::size_t c = 0; c < static_cast<std::size_t>(width); ++c) {
      const float product = scales[i] * b[i * static_cast<std::size_t>(width) + c];
      to_rows[static_cast<std::size_t>(places[i] * width) + c] += product;
    }
  for (Backend* const each : {&backend(), &oracle()}) {
    const Placed into = put(*each, DType::kF32, {rows, width}, a),
                 x = put(*each, DType::kF32, {3, width}, rows_of(b, 0, 3, width));
    each->add_rows(into.view, x.view, places, scales);
    EXPECT_TRUE(same_bits(get(*each, into.view), to_rows));
  }

  const Placed f32 = put(backend(), DType::kF32, {rows, width}, a);
  const Placed bf16 = poisoned(backend(), DType::kBF16, {rows, width}),
               back = poisoned(backend(), DType::kF32, {rows, width});
  backend().convert(bf16.view, f32.view);
  backend().convert(back.view, bf16.view);
  EXPECT_TRUE(same_bits(get(backend(), back.view), rounded(DType::kBF16, a)));
  const Placed copied = poisoned(backend(), DType::kF32, {rows, width});
  backend().convert(copied.view, f32.view);
  EXPECT_TRUE(same_bits(get(backend(), copied.view), a));

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
