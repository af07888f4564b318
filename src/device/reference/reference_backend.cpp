// The meaning of every operation: plain loops, sums in double in index order, one rounding at the end.
//
// No speed is sought and no thread is started; the oracle must be read and believed at a glance. Products of
// two FP32 (or narrower) numbers are exact in double, so the only error of a sum is double's own, about K *
// 2^-53 of the sum of absolute products.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "device/backend.h"
#include "device/on_device.h"
#include "device/own_weight.h"
#include "device/reference/attention.h"
#include "device/reference/elements.h"
#include "device/reference/recurrence.h"
#include "device/reference/weight.h"

namespace llmq {
namespace {

using reference::read;
using reference::write;

double activated(double x, Activation act) {
  switch (act) {
    case Activation::kSilu:
      return x / (1.0 + std::exp(-x));
    case Activation::kGeluTanh:
      return 0.5 * x *
             (1.0 + std::tanh(std::sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::kRelu:
      return x < 0 ? 0.0 : x;
    case Activation::kSigmoid:
      return 1.0 / (1.0 + std::exp(-x));
    case Activation::kClampedSwiglu: {
      const double limit = static_cast<double>(kSwigluLimit), gate = x > limit ? limit : x;
      return gate / (1.0 + std::exp(-static_cast<double>(kSwigluSlope) * gate));
    }
  }
  fail(ErrorKind::kInternal, "the reference does not know activation {}", static_cast<int>(act));
}

// What a gate multiplies.
double factor_of(double up, Activation act) {
  const double limit = static_cast<double>(kSwigluLimit);
  return act == Activation::kClampedSwiglu ? (up > limit ? limit : up < -limit ? -limit : up) + 1 : up;
}

// log sum_i exp(row_i), the greatest taken out first.
double log_sum_exp(const TensorView& logits, std::int64_t row) {
  double greatest = -std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < logits.cols(); ++i) greatest = std::max(greatest, read(logits, row, i));
  double sum = 0;
  for (std::int64_t i = 0; i < logits.cols(); ++i) sum += std::exp(read(logits, row, i) - greatest);
  return greatest + std::log(sum);
}

class ReferenceBackend final : public Backend {
 public:
  std::string name() const override { return "reference"; }
  Device device() const override { return {}; }
  int threads() const override { return 1; }
  ThreadPool& workers() override { return pool_; }
  const Extensions& extensions() const override { return kNoExtensions; }

  Buffer allocate(std::size_t bytes) override { return Buffer(host_memory(), bytes); }
  void upload(const TensorView& to, const void* from_host) override {
    require_on(device(), "upload", {&to});
    copy_from_host(to, from_host);
  }
  void download(void* to_host, const TensorView& from) override {
    require_on(device(), "download", {&from});
    copy_to_host(to_host, from);
  }
  void synchronize() override {}

  std::unique_ptr<PreparedWeight> prepare(const TensorView& weight, Compute compute) override {
    require_on({}, "prepare", {&weight});
    return reference::prepare(weight, compute);
  }
  std::unique_ptr<PreparedWeight> prepare_quantized(const QuantizedMatrix& matrix, Compute compute) override {
    return reference::prepare_quantized(matrix, compute);
  }
  bool keeps_codes(const QuantizedMatrix&, Compute) const override { return true; }

  void linear(const TensorView& y, const TensorView& x, const PreparedWeight& w,
              const TensorView& bias) override {
    require_on(device(), "linear", {&y, &x, &bias});
    reference::multiply(y, x, own_weight<reference::Weight>(w, *this), bias);
  }

  void embed(const TensorView& y, const TensorView& table, std::span<const std::int32_t> ids) override {
    require_on(device(), "embed", {&y, &table});
    for (std::size_t t = 0; t < ids.size(); ++t)
      for (std::int64_t h = 0; h < table.cols(); ++h)
        write(y, static_cast<std::int64_t>(t), h, read(table, ids[t], h));
  }

  void rms_norm(const TensorView& y, const TensorView& x, const TensorView& gain, float eps) override {
    require_on(device(), "rms_norm", {&y, &x, &gain});
    for (std::int64_t row = 0; row < x.rows(); ++row) {
      double squares = 0;
      for (std::int64_t h = 0; h < x.cols(); ++h) squares += read(x, row, h) * read(x, row, h);
      const double root = std::sqrt(squares / static_cast<double>(x.cols()) + static_cast<double>(eps));
      for (std::int64_t h = 0; h < x.cols(); ++h)
        write(y, row, h, read(x, row, h) / root * static_cast<double>(gain.as<const float>()[h]));
    }
  }

  void layer_norm(const TensorView& y, const TensorView& x, const TensorView& gain, const TensorView& bias,
                  float eps) override {
    require_on(device(), "layer_norm", {&y, &x, &gain, &bias});
    const auto width = static_cast<double>(x.cols());
    for (std::int64_t row = 0; row < x.rows(); ++row) {
      double sum = 0, squares = 0;
      for (std::int64_t h = 0; h < x.cols(); ++h) sum += read(x, row, h);
      const double mean = sum / width;
      for (std::int64_t h = 0; h < x.cols(); ++h)
        squares += (read(x, row, h) - mean) * (read(x, row, h) - mean);
      const double root = std::sqrt(squares / width + static_cast<double>(eps));
      for (std::int64_t h = 0; h < x.cols(); ++h) {
        const double shift = bias.pointer == nullptr ? 0.0 : static_cast<double>(bias.as<const float>()[h]);
        write(y, row, h, (read(x, row, h) - mean) / root * read(gain, row % gain.rows(), h) + shift);
      }
    }
  }

  void rope(const TensorView& x, std::span<const std::int32_t> positions, const TensorView& cosines,
            const TensorView& sines, RopePairs pairs) override {
    require_on(device(), "rope", {&x, &cosines, &sines});
    const std::int64_t heads = x.shape[1], half = x.cols() / 2;
    const bool neighbours = pairs == RopePairs::kNeighbours;
    for (std::int64_t row = 0; row < x.rows(); ++row) {
      const std::int64_t position = positions[static_cast<std::size_t>(row / heads)];
      for (std::int64_t i = 0; i < half; ++i) {
        const double c = read(cosines, position, i), s = read(sines, position, i);
        const std::int64_t one = neighbours ? 2 * i : i, other = neighbours ? 2 * i + 1 : i + half;
        const double a = read(x, row, one), b = read(x, row, other);
        write(x, row, one, a * c - b * s);
        write(x, row, other, b * c + a * s);
      }
    }
  }

  void store_kv(const KvPages& pages, const TensorView& k, const TensorView& v,
                std::span<const std::int64_t> slots) override {
    require_on(device(), "store_kv", {&pages.keys, &pages.values, &k, &v});
    reference::store_kv(pages, k, v, slots);
  }

  void load_kv(const TensorView& k, const TensorView& v, const KvPages& pages,
               std::span<const std::int64_t> slots) override {
    require_on(device(), "load_kv", {&pages.keys, &pages.values, &k, &v});
    reference::load_kv(k, v, pages, slots);
  }

  void attention(const TensorView& out, const TensorView& q, const KvPages& pages,
                 std::span<const SequenceRows> sequences, const AttentionProblem& problem) override {
    require_on(device(), "attention", {&out, &q, &pages.keys, &pages.values, &problem.sinks});
    reference::attend(out, q, pages, sequences, problem);
  }

  void causal_conv(const TensorView& y, const TensorView& x, const TensorView& weight,
                   const TensorView& before) override {
    require_on(device(), "causal_conv", {&y, &x, &weight, &before});
    reference::convolve(y, x, weight, before);
  }

  void delta_rule(const TensorView& out, const TensorView& q, const TensorView& k, const TensorView& v,
                  const DeltaGates& gates, const TensorView& state, const DeltaHeads& heads) override {
    require_on(device(), "delta_rule",
               {&out, &q, &k, &v, &gates.decay, &gates.share, &gates.rate, &gates.shift, &state});
    reference::apply_delta_rule(out, q, k, v, gates, state, heads);
  }

  void gated_activation(const TensorView& y, const TensorView& gate, const TensorView& up,
                        Activation act) override {
    require_on(device(), "gated_activation", {&y, &gate, &up});
    for (std::int64_t row = 0; row < gate.rows(); ++row)
      for (std::int64_t i = 0; i < gate.cols(); ++i)
        write(y, row, i, activated(read(gate, row, i), act) * factor_of(read(up, row, i), act));
  }

  void activate(const TensorView& y, const TensorView& x, Activation act) override {
    require_on(device(), "activate", {&y, &x});
    for (std::int64_t row = 0; row < x.rows(); ++row)
      for (std::int64_t i = 0; i < x.cols(); ++i) write(y, row, i, activated(read(x, row, i), act));
  }

  void softcap(const TensorView& x, float cap) override {
    require_on(device(), "softcap", {&x});
    for (std::int64_t row = 0; row < x.rows(); ++row)
      for (std::int64_t i = 0; i < x.cols(); ++i)
        write(x, row, i, reference::softcapped(read(x, row, i), static_cast<double>(cap)));
  }

  void add(const TensorView& into, const TensorView& x, float scale) override {
    require_on(device(), "add", {&into, &x});
    for (std::int64_t row = 0; row < x.rows(); ++row)
      for (std::int64_t i = 0; i < x.cols(); ++i)
        write(into, row, i, read(into, row, i) + static_cast<float>(scale * read(x, row, i)));
  }

  void add_rows(const TensorView& into, const TensorView& x, std::span<const std::int32_t> rows,
                std::span<const float> scales) override {
    require_on(device(), "add_rows", {&into, &x});
    for (std::size_t i = 0; i < rows.size(); ++i)
      for (std::int64_t c = 0; c < x.cols(); ++c) {
        const double product = static_cast<double>(scales[i]) * read(x, static_cast<std::int64_t>(i), c);
        write(into, rows[i], c, read(into, rows[i], c) + static_cast<double>(static_cast<float>(product)));
      }
  }

  void convert(const TensorView& to, const TensorView& from) override {
    require_on(device(), "convert", {&to, &from});
    for (std::int64_t row = 0; row < from.rows(); ++row)
      for (std::int64_t i = 0; i < from.cols(); ++i) write(to, row, i, read(from, row, i));
  }

  void score_rows(const TensorView& logits, std::span<const std::int32_t> targets,
                  std::span<RowScore> scores) override {
    require_on(device(), "score_rows", {&logits});
    for (std::size_t r = 0; r < scores.size(); ++r) {
      const auto row = static_cast<std::int64_t>(r);
      std::int32_t best = 0;
      for (std::int64_t i = 1; i < logits.cols(); ++i)
        if (read(logits, row, i) > read(logits, row, best)) best = static_cast<std::int32_t>(i);
      scores[r] = {read(logits, row, targets[r]) - log_sum_exp(logits, row), best};
    }
  }

  void divergence(const TensorView& p, const TensorView& q, std::span<double> kl) override {
    require_on(device(), "divergence", {&p, &q});
    for (std::size_t r = 0; r < kl.size(); ++r) {
      const auto row = static_cast<std::int64_t>(r);
      const double p_norm = log_sum_exp(p, row), q_norm = log_sum_exp(q, row);
      double sum = 0;
      for (std::int64_t i = 0; i < p.cols(); ++i) {
        const double p_log = read(p, row, i) - p_norm, q_log = read(q, row, i) - q_norm,
                     share = std::exp(p_log);
        if (share > 0) sum += share * (p_log - q_log);
      }
      kl[r] = sum;
    }
  }

  void gram(const TensorView& g, const TensorView& x, std::int64_t before) override {
    require_on(device(), "gram", {&g, &x});
    require_gram_start(before);
    for (std::int64_t i = 0; i < x.cols(); ++i)
      for (std::int64_t j = i; j < x.cols(); ++j) {
        double sum = read(g, i, j);
        for (std::int64_t t = 0; t < x.rows(); ++t) sum += read(x, t, i) * read(x, t, j);
        write(g, i, j, sum);
      }
  }

  void drain_gram(ExactSums& triangle, const TensorView& g) override {
    require_on(device(), "drain_gram", {&g});
    std::size_t at = 0;
    for (std::int64_t i = 0; i < g.rows(); ++i) {
      const std::span<float> row(g.row<float>(i) + i, static_cast<std::size_t>(g.cols() - i));
      triangle.add(at, row);
      at += row.size();
      std::fill(row.begin(), row.end(), 0.0f);
    }
  }

  void channel_stats(const TensorView& x, std::span<double> absolute_sum,
                     std::span<float> absolute_max) override {
    require_on(device(), "channel_stats", {&x});
    for (std::int64_t t = 0; t < x.rows(); ++t)
      for (std::int64_t k = 0; k < x.cols(); ++k) {
        const double magnitude = std::fabs(read(x, t, k));
        absolute_sum[static_cast<std::size_t>(k)] += magnitude;
        float& greatest = absolute_max[static_cast<std::size_t>(k)];
        greatest = std::max(greatest, static_cast<float>(magnitude));
      }
  }

  void quadratic_form(std::span<double> loss, const TensorView& d, const PreparedWeight& g) override {
    require_on(device(), "quadratic_form", {&d});
    const auto& square = own_weight<reference::Weight>(g, *this);
    if (square.codes) fail(ErrorKind::kInternal, "a quadratic form of codes was asked for; numbers make one");
    for (std::size_t r = 0; r < loss.size(); ++r) {
      const auto row = static_cast<std::int64_t>(r);
      double sum = 0;
      for (std::int64_t i = 0; i < d.cols(); ++i) {
        double inner = 0;
        for (std::int64_t j = 0; j < d.cols(); ++j)
          inner += static_cast<double>(square.row(i)[j]) * read(d, row, j);
        sum += read(d, row, i) * inner;
      }
      loss[r] = sum;
    }
  }

 private:
  ThreadPool pool_{1};
};

}  // namespace

std::shared_ptr<Backend> make_reference_backend() { return std::make_shared<ReferenceBackend>(); }

}  // namespace llmq
