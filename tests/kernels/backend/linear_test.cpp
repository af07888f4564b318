// y = x w^T + bias on every backend, within the bound of an FP32 sum in any order (support/tolerance.h).
#include "backend_fixture.h"

namespace llmq::testing {
namespace {

struct LinearProblem {
  std::int64_t m, n, k;
  int spread;    // of exponents within one sum
  double scale;  // of everything
  bool bias;
};

std::vector<float> run_linear(Backend& backend, const LinearProblem& p, Compute compute,
                              const std::vector<float>& x, const std::vector<float>& w,
                              const std::vector<float>& bias, DType weight_dtype = DType::kF32) {
  const std::vector<char> weight_bytes = encode(weight_dtype, w);
  const auto weight =
      backend.prepare(TensorView(weight_bytes.data(), weight_dtype, Shape{p.n, p.k}), compute);
  return linear_on(backend, *weight, p.m, x, p.bias ? bias : std::vector<float>());
}

class Linear : public BackendTest {
 protected:
  void check(const LinearProblem& p, Compute compute) {
    Numbers numbers(static_cast<std::uint64_t>(p.m * 1000003 + p.n * 1009 + p.k));
    const std::vector<float> x = numbers.values(p.m * p.k, p.spread, p.scale);
    const std::vector<float> w = numbers.values(p.n * p.k, p.spread, 1 / p.scale);
    const std::vector<float> bias = numbers.values(p.n);
    const std::vector<float> want = run_linear(oracle(), p, compute, x, w, bias);
    const std::vector<float> sums =
        run_linear(oracle(), p, compute, absolute(x), absolute(w), absolute(bias));
    std::vector<double>
        bound;  // K products and the bias; the oracle's own rounding; its rounding of the absolute sum
    for (std::size_t i = 0; i < want.size(); ++i)
      bound.push_back(fp32_dot_bound(p.k + 1, sums[i] * (1 + 2 * kFp32Roundoff)) +
                      fp32_rounding_bound(want[i]));
    std::vector<float> got = run_linear(backend(), p, compute, x, w, bias);
    SCOPED_TRACE(fmt::format("M {} N {} K {} spread {} scale {}", p.m, p.n, p.k, p.spread, p.scale));
    ASSERT_EQ(outside(got, widened(want), bound), "");
    if (p.spread == 0 && p.k > 1) plant(p, compute, x, w, got, want, bound);
  }

  // A sum that lost its greatest product is outside the bound: the last row's last column.
  static void plant(const LinearProblem& p, Compute compute, const std::vector<float>& x,
                    const std::vector<float>& w, std::vector<float> got, const std::vector<float>& want,
                    const std::vector<double>& bound) {
    const DType dtype = activation_dtype(compute);
    const std::vector<float> xs = rounded(dtype, x), ws = rounded(dtype, w);
    float greatest = 0;
    for (std::int64_t k = 0; k < p.k; ++k) {
      const float product = xs[static_cast<std::size_t>((p.m - 1) * p.k + k)] *
                            ws[static_cast<std::size_t>((p.n - 1) * p.k + k)];
      if (std::fabs(product) > std::fabs(greatest)) greatest = product;
    }
    got.back() -= greatest;
    EXPECT_NE(outside(got, widened(want), bound), "");
  }
};

TEST_P(Linear, OddShapes) {
  const std::vector<std::int64_t> sizes = {1, 2, 3, 15, 16, 17, 31, 63, 64, 65};
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16})
    for (std::size_t i = 0; i < sizes.size(); ++i)
      for (std::size_t j = 0; j < sizes.size(); ++j)
        check({sizes[i], sizes[j], sizes[(3 * i + 7 * j) % sizes.size()], 0, 1, (i + j) % 2 == 0}, compute);
}

TEST_P(Linear, ModelShapes) {
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16}) {
    check({1, 576, 576, 0, 1, false}, compute);
    check({7, 193, 1536, 0, 1, true}, compute);
    check({70, 192, 577, 0, 1, true}, compute);
    check({129, 33, 575, 0, 1, false}, compute);
  }
}

TEST_P(Linear, ExtremeScales) {
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16}) {
    check({5, 17, 65, 20, 1, false}, compute);
    check({5, 17, 65, 6, 0x1p60, false}, compute);
    check({5, 17, 65, 6, 0x1p-60, false}, compute);
  }
}

TEST_P(Linear, WeightsOfEveryStoredType) {
  const LinearProblem p{3, 18, 33, 0, 1, false};
  Numbers numbers(5);
  const std::vector<float> x = numbers.values(p.m * p.k), w = numbers.values(p.n * p.k);
  for (const Compute compute : {Compute::kFloat32, Compute::kBFloat16})
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const std::vector<float> same = rounded(dtype, w);
      EXPECT_TRUE(same_bits(run_linear(backend(), p, compute, x, w, {}, dtype),
                            run_linear(backend(), p, compute, x, same, {})))
          << dtype_row(dtype).name;
    }
}

// Outputs and inputs that are slices of wider rows; the columns between stay untouched.
TEST_P(Linear, RowStrides) {
  const std::int64_t m = 9, n = 21, k = 35;
  Numbers numbers(6);
  const std::vector<float> x = numbers.values(m * k), w = numbers.values(n * k);
  const LinearProblem p{m, n, k, 0, 1, false};
  const std::vector<float> want = run_linear(backend(), p, Compute::kFloat32, x, w, {});

  std::vector<float> wide_x(static_cast<std::size_t>(m * (k + 5)), 7.0f);
  for (std::int64_t r = 0; r < m; ++r) std::copy_n(x.begin() + r * k, k, wide_x.begin() + r * (k + 5));
  const Placed input = put(backend(), DType::kF32, {m, k + 5}, wide_x);
  const Placed output = put(backend(), DType::kF32, {m, n + 3},
                            std::vector<float>(static_cast<std::size_t>(m * (n + 3)), 9.0f));
  TensorView x_view = input.view, y_view = output.view;
  x_view.shape = {m, k};
  y_view.shape = {m, n};
  const auto weight = backend().prepare(TensorView(w.data(), DType::kF32, Shape{n, k}), Compute::kFloat32);
  backend().linear(y_view, x_view, *weight, {});
  const std::vector<float> got = get(backend(), output.view);
  for (std::int64_t r = 0; r < m; ++r)
    for (std::int64_t c = 0; c < n + 3; ++c)
      ASSERT_EQ(got[static_cast<std::size_t>(r * (n + 3) + c)],
                c < n ? want[static_cast<std::size_t>(r * n + c)] : 9.0f);
}

// CUDA's plain products are the same chain of fused multiply-adds as the CPU's (docs/adr/0013).
TEST_P(Linear, Float32OnCudaHasTheBitsOfTheCpu) {
  if (GetParam().name.rfind("cuda", 0) != 0) GTEST_SKIP() << "not a CUDA backend";
  const auto scalar = make_cpu_backend_at(1, "scalar");
  for (const LinearProblem& p :
       {LinearProblem{1, 67, 131, 0, 1, false}, LinearProblem{70, 65, 192, 6, 1, false}}) {
    Numbers numbers(8);
    const std::vector<float> x = numbers.values(p.m * p.k, p.spread), w = numbers.values(p.n * p.k, p.spread);
    EXPECT_TRUE(same_bits(run_linear(backend(), p, Compute::kFloat32, x, w, {}),
                          run_linear(*scalar, p, Compute::kFloat32, x, w, {})));
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Linear, ::testing::ValuesIn(multiplying_backends({1, 2})), param_name);

}  // namespace
}  // namespace llmq::testing
