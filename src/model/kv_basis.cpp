#include "model/kv_basis.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace llmq {
namespace {

constexpr double kRidge = 1e-4;  // of the mean second moment: directions that the probe never saw stay finite
constexpr int kMostSweeps = 20;

using Matrix = std::vector<double>;  // [n, n]

Matrix product(const Matrix& a, const Matrix& b, std::size_t n) {
  Matrix c(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t k = 0; k < n; ++k)
      for (std::size_t j = 0; j < n; ++j) c[i * n + j] += a[i * n + k] * b[k * n + j];
  return c;
}

Matrix transposed(const Matrix& a, std::size_t n) {
  Matrix t(n * n);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) t[j * n + i] = a[i * n + j];
  return t;
}

Matrix with_ridge(Matrix a, std::size_t n) {
  double trace = 0;
  for (std::size_t i = 0; i < n; ++i) trace += a[i * n + i];
  if (!std::isfinite(trace)) fail(ErrorKind::kBadInput, "keys, values or queries of the probe text are not finite");
  for (std::size_t i = 0; i < n; ++i) a[i * n + i] += trace > 0 ? kRidge * trace / static_cast<double>(n) : 1;
  return a;
}

// a = L L^T, and L^-1. `a` is positive definite by its ridge.
Matrix cholesky(const Matrix& a, std::size_t n) {
  Matrix l(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = a[i * n + j];
      for (std::size_t k = 0; k < j; ++k) sum -= l[i * n + k] * l[j * n + k];
      l[i * n + j] = i == j ? std::sqrt(std::max(sum, 1e-300)) : sum / l[j * n + j];
    }
  return l;
}

Matrix lower_inverse(const Matrix& l, std::size_t n) {
  Matrix inverse(n * n, 0.0);
  for (std::size_t column = 0; column < n; ++column)
    for (std::size_t i = column; i < n; ++i) {
      double sum = i == column ? 1 : 0;
      for (std::size_t k = column; k < i; ++k) sum -= l[i * n + k] * inverse[k * n + column];
      inverse[i * n + column] = sum / l[i * n + i];
    }
  return inverse;
}

// Cyclic Jacobi: `a` becomes diagonal, the rows of `vectors` its eigenvectors.
void diagonalize(Matrix& a, Matrix& vectors, std::size_t n) {
  vectors.assign(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i) vectors[i * n + i] = 1;
  const auto rotate = [n](double* x, double* y, double c, double s) {
    for (std::size_t k = 0; k < n; ++k) {
      const double one = x[k], other = y[k];
      x[k] = c * one - s * other;
      y[k] = s * one + c * other;
    }
  };
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    double off = 0, on = 0;
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j) (i == j ? on : off) += a[i * n + j] * a[i * n + j];
    if (off <= 1e-20 * on) return;
    for (std::size_t p = 0; p + 1 < n; ++p)
      for (std::size_t q = p + 1; q < n; ++q) {
        const double apq = a[p * n + q];
        if (apq * apq <= 1e-26 * std::fabs(a[p * n + p] * a[q * n + q])) continue;
        const double theta = (a[q * n + q] - a[p * n + p]) / (2 * apq);
        const double t = (theta < 0 ? -1 : 1) / (std::fabs(theta) + std::sqrt(theta * theta + 1));
        const double c = 1 / std::sqrt(t * t + 1), s = t * c;
        rotate(&a[p * n], &a[q * n], c, s);
        for (std::size_t k = 0; k < n; ++k) {
          const double one = a[k * n + p], other = a[k * n + q];
          a[k * n + p] = c * one - s * other;
          a[k * n + q] = s * one + c * other;
        }
        rotate(&vectors[p * n], &vectors[q * n], c, s);
      }
  }
}

// The largest power of two that divides n.
std::size_t hadamard_block(std::size_t n) { return n & (~n + 1); }

}  // namespace

std::vector<double> hadamard_matrix(std::size_t n) {
  const std::size_t block = hadamard_block(n);
  Matrix h(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = i / block * block; j < (i / block + 1) * block; ++j)
      h[i * n + j] = (std::popcount((i % block) & (j % block)) % 2 == 0 ? 1 : -1) / std::sqrt(static_cast<double>(block));
  return h;
}

// keys = L L^T, L^T queries L = Q D Q^T, T = Q^T L^-1: T k has the second moment 1, T^-T q has D. Rows times D^(1/4) make both sqrt(D).
HeadBasis fit_head_basis(const std::vector<double>& keys, const std::vector<double>& queries) {
  const auto n = static_cast<std::size_t>(std::llround(std::sqrt(static_cast<double>(keys.size()))));
  const Matrix factor = cholesky(with_ridge(keys, n), n), upper = transposed(factor, n);
  Matrix turned = product(product(upper, with_ridge(queries, n), n), factor, n), vectors;
  diagonalize(turned, vectors, n);
  const Matrix forward = product(vectors, lower_inverse(factor, n), n), inverse = product(vectors, upper, n);
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return turned[a * n + a] > turned[b * n + b]; });
  // Large and small go round the blocks that are mixed, so that no block decides the scale of a row alone.
  const std::size_t block = hadamard_block(n), blocks = n / block;
  Matrix sized(n * n), sized_inverse(n * n);
  for (std::size_t r = 0; r < n; ++r) {
    const std::size_t from = order[r], to = r % blocks * block + r / blocks;
    const double weight = std::pow(std::max(turned[from * n + from], 1e-300), 0.25);
    for (std::size_t k = 0; k < n; ++k) {
      sized[to * n + k] = forward[from * n + k] * weight;
      sized_inverse[to * n + k] = inverse[from * n + k] / weight;
    }
  }
  const Matrix spread = hadamard_matrix(n);
  return {product(spread, sized, n), product(spread, sized_inverse, n)};
}

namespace {

std::unique_ptr<PreparedWeight> prepare_square(Backend& backend, const Matrix& matrix, std::int64_t n) {
  const std::vector<float> rounded(matrix.begin(), matrix.end());
  return backend.prepare(TensorView(rounded.data(), DType::kF32, Shape{n, n}), Compute::kFloat32);
}

}  // namespace

std::unique_ptr<PreparedWeight> prepare_mixing(Backend& backend, std::int64_t head_dim) {
  return prepare_square(backend, hadamard_matrix(static_cast<std::size_t>(head_dim)), head_dim);
}

KvBasis prepare_kv_basis(Backend& backend, std::span<const HeadBasis> heads, std::shared_ptr<const PreparedWeight> mixing) {
  KvBasis basis;
  basis.mixing = std::move(mixing);
  for (const HeadBasis& head : heads) {
    const auto n = static_cast<std::int64_t>(std::llround(std::sqrt(static_cast<double>(head.forward.size()))));
    basis.keys.push_back(prepare_square(backend, head.forward, n));
    basis.queries.push_back(prepare_square(backend, head.inverse_transposed, n));
  }
  return basis;
}

void change_basis(Backend& backend, const TensorView& y, const TensorView& x, std::span<const std::unique_ptr<PreparedWeight>> by_kv_head) {
  const std::int64_t rows = x.shape[0], heads = x.shape[1], n = x.shape[2];
  const std::int64_t group = heads / static_cast<std::int64_t>(by_kv_head.size());
  // A single row's heads of one KV head lie side by side.
  const std::int64_t step = rows == 1 ? group : 1;
  const auto slice = [&](const TensorView& all, std::int64_t head) {
    TensorView part(all.as<float>() + head * n, DType::kF32, Shape{rows == 1 ? group : rows, n}, all.device);
    part.row_stride = rows == 1 ? n : heads * n;
    return part;
  };
  for (std::int64_t head = 0; head < heads; head += step)
    backend.linear(slice(y, head), slice(x, head), *by_kv_head[static_cast<std::size_t>(head / group)], {});
}

void mix_heads(Backend& backend, const TensorView& y, const TensorView& x, const PreparedWeight& w) {
  const auto rows = [](const TensorView& all) { return TensorView(all.pointer, DType::kF32, Shape{all.shape[0] * all.shape[1], all.shape[2]}, all.device); };
  backend.linear(rows(y), rows(x), w, {});
}

}  // namespace llmq
