// Sums in double; what a row leaves behind is rounded to FP32 behind every row, as it is where a sequence is
// cut there.
#include "device/reference/recurrence.h"

#include <cmath>
#include <vector>

#include "device/reference/elements.h"

namespace llmq::reference {
namespace {

// x / sqrt(sum x^2 + 1e-6) of one head.
std::vector<double> unit(const TensorView& x, std::int64_t row, std::int64_t first, std::int64_t dim) {
  std::vector<double> values;
  double squares = 0;
  for (std::int64_t c = 0; c < dim; ++c) {
    values.push_back(read(x, row, first + c));
    squares += values.back() * values.back();
  }
  for (double& value : values) value /= std::sqrt(squares + 1e-6);
  return values;
}

double softplus(double x) { return x > 30 ? x : std::log1p(std::exp(x)); }

}  // namespace

void convolve(const TensorView& y, const TensorView& x, const TensorView& weight, const TensorView& before) {
  const std::int64_t taps = weight.rows(), rows = x.rows();
  const auto at = [&](std::int64_t t, std::int64_t c) {
    return t < 0 ? read(before, taps - 1 + t, c) : read(x, t, c);
  };
  for (std::int64_t t = 0; t < rows; ++t)
    for (std::int64_t c = 0; c < x.cols(); ++c) {
      double sum = 0;
      for (std::int64_t j = 0; j < taps; ++j) sum += read(weight, j, c) * at(t - taps + 1 + j, c);
      write(y, t, c, sum / (1 + std::exp(-sum)));
    }
  for (std::int64_t j = 0; j < taps - 1; ++j)  // rising: what is read has not been written yet
    for (std::int64_t c = 0; c < x.cols(); ++c) write(before, j, c, at(rows - taps + 1 + j, c));
}

void apply_delta_rule(const TensorView& out, const TensorView& q, const TensorView& k, const TensorView& v,
                      const DeltaGates& gates, const TensorView& state, const DeltaHeads& heads) {
  const std::int64_t keys = heads.key_dim, values = heads.value_dim;
  for (std::int64_t h = 0; h < heads.value_heads; ++h) {
    const std::int64_t head = h / (heads.value_heads / heads.key_heads);
    for (std::int64_t t = 0; t < q.rows(); ++t) {
      const std::vector<double> key = unit(k, t, head * keys, keys), query = unit(q, t, head * keys, keys);
      const double decay = std::exp(-std::exp(read(gates.rate, 0, h)) *
                                    softplus(read(gates.decay, t, h) + read(gates.shift, 0, h))),
                   share = 1 / (1 + std::exp(-read(gates.share, t, h)));
      for (std::int64_t j = 0; j < values; ++j) {
        double known = 0, given = 0;
        for (std::int64_t c = 0; c < keys; ++c)
          known += decay * read(state, h * keys + c, j) * key[static_cast<std::size_t>(c)];
        const double taken = share * (read(v, t, h * values + j) - known);
        for (std::int64_t c = 0; c < keys; ++c) {
          const auto i = static_cast<std::size_t>(c);
          write(state, h * keys + c, j, decay * read(state, h * keys + c, j) + key[i] * taken);
          given += read(state, h * keys + c, j) * query[i];
        }
        write(out, t, h * values + j, given / std::sqrt(static_cast<double>(keys)));
      }
    }
  }
}

}  // namespace llmq::reference
