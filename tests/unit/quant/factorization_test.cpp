// The blocked Cholesky factor against its definition: R R^T gives the matrix back.
#include "quant/methods/gptq/factorization.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/error.h"
#include "device/cuda/cuda_backend.h"

namespace llmq {
namespace {

// A B^T with random A of `tokens` columns: of rank `tokens` at most.
std::vector<double> gram(std::int64_t size, std::int64_t tokens) {
  std::mt19937 generator(3);
  std::normal_distribution<double> normal;
  std::vector<double> x(static_cast<std::size_t>(tokens * size)),
      square(static_cast<std::size_t>(size * size));
  for (double& v : x) v = normal(generator);
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t i = 0; i < size; ++i)
      for (std::int64_t j = 0; j < size; ++j)
        square[static_cast<std::size_t>(i * size + j)] +=
            x[static_cast<std::size_t>(t * size + i)] * x[static_cast<std::size_t>(t * size + j)];
  return square;
}

// Higham, theorem 10.3: |R R^T - H| <= gamma(n + 1) |R| |R^T| element by element, and |R| |R^T| <= sqrt(h_ii
// h_jj). Blocks below the diagonal are multiplied by an inverse instead of solved, which costs a factor of
// the triangle's condition number; that of 64 columns of these matrices is below 1e4.
TEST(Factorization, GivesTheMatrixBack) {
  const auto backend = make_cpu_backend(2);
  for (const std::int64_t size : {1, 2, 63, 64, 65, 200}) {
    const std::vector<double> h = gram(size, 2 * size);
    const auto element = [&](std::int64_t i, std::int64_t j) {
      return h[static_cast<std::size_t>(i * size + j)];
    };
    double mean = 0;
    for (std::int64_t i = 0; i < size; ++i) mean += element(i, i) / static_cast<double>(size);
    const Factorization f = factorize(size, 0.01, mean, element, *backend);
    EXPECT_EQ(f.raises, 0);
    EXPECT_EQ(f.lambda, 0.01 * mean);
    for (std::int64_t i = 0; i < size; ++i)
      for (std::int64_t j = i; j < size; ++j) {
        double sum = 0;
        for (std::int64_t k = j; k < size; ++k) sum += f.upper(i, k) * f.upper(j, k);
        const double want = element(i, j) + (i == j ? f.lambda : 0);
        const double bound = 1e4 * static_cast<double>(size + 1) * 0x1p-53 *
                             std::sqrt((element(i, i) + f.lambda) * (element(j, j) + f.lambda));
        ASSERT_NEAR(sum, want, bound) << size << ": " << i << ", " << j;
      }
  }
}

// x (L L^T) gives the rows back. Each of the two solves has a backward error of gamma(n + 1) |L| |L^T| times
// what a block's inverse costs (see above), here per row: |x| |L| |L^T| <= |x|_1 max_i h_ii.
TEST(Factorization, SolvesRows) {
  const auto backend = make_cpu_backend(2);
  for (const std::int64_t size : {1, 63, 64, 65, 200}) {
    const std::vector<double> h = gram(size, 2 * size);
    const auto element = [&](std::int64_t i, std::int64_t j) {
      return h[static_cast<std::size_t>((size - 1 - i) * size + size - 1 -
                                        j)];  // so that the factor is of h itself
    };
    const Factorization f =
        factorize(size, 0.1, static_cast<double>(2 * size), element, *backend, FactorUse::kSolving);
    const std::int64_t stride = f.reversed.padded(), count = 50;
    std::vector<double> rows(static_cast<std::size_t>(count * stride));
    std::mt19937 generator(5);
    std::normal_distribution<double> normal;
    for (std::int64_t n = 0; n < count; ++n)
      for (std::int64_t k = 0; k < size; ++k)
        rows[static_cast<std::size_t>(n * stride + k)] = normal(generator);
    std::vector<double> solved = rows;
    f.solve(solved, backend->workers());
    for (std::int64_t n = 0; n < count; ++n)
      for (std::int64_t k = 0; k < size; ++k) {
        double sum = 0, norm = 0, largest = 0;
        for (std::int64_t j = 0; j < size; ++j) {
          const double x = solved[static_cast<std::size_t>(n * stride + j)];
          sum += x * (h[static_cast<std::size_t>(j * size + k)] + (j == k ? f.lambda : 0));
          norm += std::fabs(x);
          largest = std::max(largest, h[static_cast<std::size_t>(j * size + j)] + f.lambda);
        }
        ASSERT_NEAR(sum, rows[static_cast<std::size_t>(n * stride + k)],
                    1e4 * static_cast<double>(size + 1) * 0x1p-53 * norm * largest)
            << size;
      }
  }
}

// At any thread count, and by a device that adds in the host's order, whose rows come and go in bands.
TEST(Factorization, IsTheSameWhereverItIsMade) {
  const std::vector<double> h = gram(300, 400);
  const auto element = [&](std::int64_t i, std::int64_t j) {
    return h[static_cast<std::size_t>(i * 300 + j)];
  };
  const auto one = make_cpu_backend(1), three = make_cpu_backend(3), emulated = make_emulated_cuda_backend(2);
  const Factorization a = factorize(300, 0.01, 400, element, *one);
  std::vector<double> rows(static_cast<std::size_t>(40 * a.reversed.padded()));
  for (std::size_t i = 0; i < rows.size(); ++i)
    rows[i] = static_cast<std::int64_t>(i) % a.reversed.padded() < 300 ? static_cast<double>(i % 17) - 8 : 0;
  std::vector<double> solved = rows;
  a.solve(solved, one->workers());
  for (Backend* const backend : {three.get(), emulated.get()}) {
    const Factorization b = factorize(300, 0.01, 400, element, *backend),
                        c = factorize(300, 0.01, 400, element, *backend, FactorUse::kSolving);
    for (std::int64_t i = 0; i < 300; ++i)
      ASSERT_TRUE(std::equal(a.reversed.row(i), a.reversed.row(i) + i + 1, b.reversed.row(i)))
          << backend->name() << ": " << i;
    std::vector<double> also = rows;
    c.solve(also, backend->workers());
    EXPECT_EQ(also, solved) << backend->name();
    EXPECT_EQ(c.on_device != nullptr, backend == emulated.get());
  }
}

// Without the library the host factorizes, and says so; without memory nobody does.
TEST(Factorization, OnADeviceWithoutTheLibraryIsTheHosts) {
  const std::vector<double> h = gram(70, 140);
  const auto element = [&](std::int64_t i, std::int64_t j) {
    return h[static_cast<std::size_t>(i * 70 + j)];
  };
  const auto without = make_emulated_cuda_backend(1, {0, {}, "cuSOLVER cannot be opened: it is not there"}),
             host = make_cpu_backend(1);
  const Factorization a = factorize(70, 0.01, 140, element, *without, FactorUse::kSolving),
                      b = factorize(70, 0.01, 140, element, *host);
  EXPECT_EQ(a.on_device, nullptr);
  for (std::int64_t i = 0; i < 70; ++i)
    ASSERT_TRUE(std::equal(a.reversed.row(i), a.reversed.row(i) + i + 1, b.reversed.row(i)));
  EXPECT_EQ(host_factorization(*without),
            "the host factorizes in place of the device: cuSOLVER cannot be opened: it is not there");
  EXPECT_EQ(host_factorization(*host), "");
  EXPECT_EQ(host_factorization(*make_emulated_cuda_backend(1)), "");
}

TEST(Factorization, ThatADeviceHasNoRoomForIsRefusedWithTheFigure) {
  const auto small = make_emulated_cuda_backend(1, {0, 70 * 70 * 8 - 1, {}});
  try {
    factorize(
        70, 0.01, 1, [](std::int64_t i, std::int64_t j) { return i == j ? 1.0 : 0.0; }, *small);
    FAIL() << "it was factorized";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResource);
    EXPECT_NE(
        std::string(error.what()).find("the Cholesky factor of 70 channels needs 39200 bytes of the device"),
        std::string::npos)
        << error.what();
  }
}

TEST(Factorization, RefusesWhatHasNoFactor) {
  ThreadPool pool(2);
  for (const double bad :
       {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    for (const std::int64_t place : {0, 70, 99}) {
      LowerTriangle m(100);
      for (std::int64_t i = 0; i < 100; ++i) m.row(i)[i] = i == place ? bad : 1;
      EXPECT_FALSE(cholesky_lower(m, pool)) << bad << " at " << place;
    }
}

}  // namespace
}  // namespace llmq
