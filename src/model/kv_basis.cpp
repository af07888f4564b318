#include "model/kv_basis.h"

#include <Eigen/Cholesky>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace llmq {
namespace {

constexpr double kRidge = 1e-4;  // of the mean second moment: directions that the probe never saw stay finite

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Square = Eigen::Map<const Matrix>;

Square square_of(const std::vector<double>& values, std::size_t n) {
  return Square(values.data(), static_cast<Eigen::Index>(n), static_cast<Eigen::Index>(n));
}

std::vector<double> values_of(const Matrix& matrix) { return {matrix.data(), matrix.data() + matrix.size()}; }

Matrix with_ridge(const std::vector<double>& moment, std::size_t n) {
  Matrix a = square_of(moment, n);
  const double trace = a.trace();
  if (!std::isfinite(trace))
    fail(ErrorKind::kBadInput, "keys, values or queries of the probe text are not finite");
  a.diagonal().array() += trace > 0 ? kRidge * trace / static_cast<double>(n) : 1;
  return a;
}

// The largest power of two that divides n.
std::size_t hadamard_block(std::size_t n) { return n & (~n + 1); }

}  // namespace

std::vector<double> hadamard_matrix(std::size_t n) {
  const std::size_t block = hadamard_block(n);
  std::vector<double> h(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = i / block * block; j < (i / block + 1) * block; ++j)
      h[i * n + j] = (std::popcount((i % block) & (j % block)) % 2 == 0 ? 1 : -1) /
                     std::sqrt(static_cast<double>(block));
  return h;
}

// keys = L L^T, L^T queries L = Q D Q^T, T = Q^T L^-1: T k has the second moment 1, T^-T q has D. Rows times
// D^(1/4) make both sqrt(D).
HeadBasis fit_head_basis(const std::vector<double>& keys, const std::vector<double>& queries) {
  const auto n = static_cast<std::size_t>(std::llround(std::sqrt(static_cast<double>(keys.size()))));
  const Eigen::LLT<Matrix> llt(with_ridge(keys, n));
  const Matrix factor = llt.matrixL();
  const Eigen::SelfAdjointEigenSolver<Matrix> solved(factor.transpose() * with_ridge(queries, n) * factor);
  if (llt.info() != Eigen::Success || solved.info() != Eigen::Success)
    fail(ErrorKind::kInternal, "the second moments of keys and queries have no common basis");
  const Eigen::VectorXd& sizes = solved.eigenvalues();
  const Matrix forward = llt.matrixU().solve(solved.eigenvectors()).transpose(),
               inverse = (factor * solved.eigenvectors()).transpose();
  std::vector<Eigen::Index> order(n);
  std::iota(order.begin(), order.end(), Eigen::Index{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](Eigen::Index a, Eigen::Index b) { return sizes[a] > sizes[b]; });
  // Large and small go round the blocks that are mixed, so that no block decides the scale of a row alone.
  const std::size_t block = hadamard_block(n), blocks = n / block;
  Matrix sized(n, n), sized_inverse(n, n);
  for (std::size_t r = 0; r < n; ++r) {
    const Eigen::Index from = order[r], to = static_cast<Eigen::Index>(r % blocks * block + r / blocks);
    const double weight = std::pow(std::max(sizes[from], 1e-300), 0.25);
    sized.row(to) = forward.row(from) * weight;
    sized_inverse.row(to) = inverse.row(from) / weight;
  }
  const std::vector<double> hadamard = hadamard_matrix(n);
  const Square spread = square_of(hadamard, n);
  return {values_of(spread * sized), values_of(spread * sized_inverse)};
}

namespace {

std::unique_ptr<PreparedWeight> prepare_square(Backend& backend, const std::vector<double>& matrix,
                                               std::int64_t n) {
  const std::vector<float> rounded(matrix.begin(), matrix.end());
  return backend.prepare(TensorView(rounded.data(), DType::kF32, Shape{n, n}), Compute::kFloat32);
}

}  // namespace

std::unique_ptr<PreparedWeight> prepare_mixing(Backend& backend, std::int64_t head_dim) {
  return prepare_square(backend, hadamard_matrix(static_cast<std::size_t>(head_dim)), head_dim);
}

KvBasis prepare_kv_basis(Backend& backend, std::span<const HeadBasis> heads,
                         std::shared_ptr<const PreparedWeight> mixing) {
  KvBasis basis;
  basis.mixing = std::move(mixing);
  for (const HeadBasis& head : heads) {
    const auto n =
        static_cast<std::int64_t>(std::llround(std::sqrt(static_cast<double>(head.forward.size()))));
    basis.keys.push_back(prepare_square(backend, head.forward, n));
    basis.queries.push_back(prepare_square(backend, head.inverse_transposed, n));
  }
  return basis;
}

void change_basis(Backend& backend, const TensorView& y, const TensorView& x,
                  std::span<const std::unique_ptr<PreparedWeight>> by_kv_head) {
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
  const auto rows = [](const TensorView& all) {
    return TensorView(all.pointer, DType::kF32, Shape{all.shape[0] * all.shape[1], all.shape[2]}, all.device);
  };
  backend.linear(rows(y), rows(x), w, {});
}

}  // namespace llmq
