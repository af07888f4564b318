// The meaning of every operation: plain loops, sums in double in index order, one rounding at the end.
//
// No speed is sought and no thread is started; the oracle must be read and believed at a glance. Products of
// two FP32 (or narrower) numbers are exact in double, so the only error of a sum is double's own, about K *
// 2^-53 of the sum of absolute products.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/half.h"
#include "device/backend.h"
#include "device/low_precision.h"
#include "device/on_device.h"

namespace llmq {
namespace {

double read(const TensorView& view, std::int64_t row, std::int64_t col) {
  switch (view.dtype) {
    case DType::kF32:
      return static_cast<double>(view.row<const float>(row)[col]);
    case DType::kBF16:
      return static_cast<double>(to_float(view.row<const BFloat16>(row)[col]));
    case DType::kF16:
      return static_cast<double>(to_float(view.row<const Float16>(row)[col]));
    default:
      fail(ErrorKind::kInternal, "the reference reads F32, BF16 and F16, not {}", dtype_row(view.dtype).name);
  }
}

// Double to FP32 to the view's type, as the FP32 result of any kernel would be stored.
void write(const TensorView& view, std::int64_t row, std::int64_t col, double value) {
  const float rounded = static_cast<float>(value);
  switch (view.dtype) {
    case DType::kF32:
      view.row<float>(row)[col] = rounded;
      return;
    case DType::kBF16:
      view.row<BFloat16>(row)[col] = to_bfloat16(rounded);
      return;
    default:
      fail(ErrorKind::kInternal, "the reference writes F32 and BF16, not {}", dtype_row(view.dtype).name);
  }
}

// use(row of [T * heads, head_dim], the pages' row of that head, dimension)
template <class Use>
void each_kv_element(const TensorView& k, std::span<const std::int64_t> slots, const Use& use) {
  const std::int64_t heads = k.shape[1];
  for (std::size_t t = 0; t < slots.size(); ++t)
    for (std::int64_t head = 0; head < heads; ++head)
      for (std::int64_t d = 0; d < k.cols(); ++d)
        use(static_cast<std::int64_t>(t) * heads + head, slots[t] * heads + head, d);
}

// The bytes of one position and head in packed pages, `from` being their keys or their values.
unsigned char* packed_row(const KvPages& pages, const TensorView& from, std::int64_t slot,
                          std::int64_t head) {
  const std::int64_t row =
      (slot / pages.block_size * from.shape[1] + head) * pages.block_size + slot % pages.block_size;
  return from.as<unsigned char>() + row * from.cols();
}

// use(row of [T * heads, head_dim], slot, head)
template <class Use>
void each_packed_row(const TensorView& k, std::span<const std::int64_t> slots, const Use& use) {
  const std::int64_t heads = k.shape[1];
  for (std::size_t t = 0; t < slots.size(); ++t)
    for (std::int64_t head = 0; head < heads; ++head)
      use(static_cast<std::int64_t>(t) * heads + head, slots[t], head);
}

class ReferenceWeight final : public PreparedWeight {
 public:
  std::vector<float> values;  // [out, in]; bfloat16 compute: already rounded
  const float* row(std::int64_t n) const { return values.data() + n * in_features; }
};

class ReferenceCodes final : public PreparedWeight {
 public:
  QuantizedMatrix matrix;
};

// One row of inputs rounded to 8 bits: codes as numbers, a scale for each group of columns.
struct RoundedRow {
  std::vector<double> codes, scales;
};

RoundedRow round_row(const TensorView& x, std::int64_t m, const QuantizedMatrix& weight) {
  const QuantScheme& scheme = weight.scheme;
  const bool float8 = scheme.weight_type == WeightType::kFloat8;
  const std::int64_t columns =
      scheme.activation_scale == ActivationScale::kTokenGroup ? weight.group() : weight.in_features;
  RoundedRow rounded;
  for (std::int64_t first = 0; first < weight.in_features; first += columns) {
    const std::int64_t end = std::min(weight.in_features, first + columns);
    float greatest = 0;
    bool finite = true;
    for (std::int64_t k = first; k < end; ++k) {
      const auto value = static_cast<float>(read(x, m, k));
      finite = finite && std::isfinite(value);
      greatest = std::max(greatest, std::fabs(value));
    }
    float scale = greatest / input_top(scheme.weight_type);
    if (scale == 0) scale = kLeastInputScale;
    if (scheme.activation_scale == ActivationScale::kTensor) scale = weight.input_scale;
    if (!finite) scale = std::numeric_limits<float>::quiet_NaN();
    for (std::int64_t k = first; k < end; ++k) {
      const float steps = static_cast<float>(read(x, m, k)) / scale;
      rounded.codes.push_back(static_cast<double>(
          float8 ? to_float(to_float8(steps)) : std::nearbyint(std::min(std::max(steps, -128.0f), 127.0f))));
    }
    rounded.scales.push_back(static_cast<double>(scale));
  }
  return rounded;
}

double multiply_codes(const RoundedRow& row, const QuantizedMatrix& weight, std::int64_t n) {
  const bool float8 = weight.scheme.weight_type == WeightType::kFloat8;
  double y = 0;
  for (std::int64_t g = 0; g < weight.groups(); ++g) {
    const auto group = static_cast<std::size_t>(n * weight.groups() + g);
    double sum = 0;  // of integers below 2^31, or of products of two E4M3: exact
    for (std::int64_t k = g * weight.group(); k < std::min(weight.in_features, (g + 1) * weight.group());
         ++k) {
      const std::uint8_t code = weight.codes[static_cast<std::size_t>(n * weight.in_features + k)];
      sum += row.codes[static_cast<std::size_t>(k)] *
             (float8 ? static_cast<double>(to_float(Float8{code}))
                     : static_cast<double>(code) - static_cast<double>(weight.zeros[group]));
    }
    y += sum * static_cast<double>(weight.scales[group]) *
         row.scales[row.scales.size() == 1 ? 0 : static_cast<std::size_t>(g)];
  }
  return y;
}

const ReferenceWeight& as_reference(const PreparedWeight& weight) {
  const auto* own = dynamic_cast<const ReferenceWeight*>(&weight);
  if (own == nullptr)
    fail(ErrorKind::kInternal, "a weight prepared by another backend reached the reference");
  return *own;
}

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
  }
  fail(ErrorKind::kInternal, "the reference does not know activation {}", static_cast<int>(act));
}

// log sum_i exp(row_i), the greatest taken out first.
double log_sum_exp(const TensorView& logits, std::int64_t row) {
  double greatest = -std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < logits.cols(); ++i) greatest = std::max(greatest, read(logits, row, i));
  double sum = 0;
  for (std::int64_t i = 0; i < logits.cols(); ++i) sum += std::exp(read(logits, row, i) - greatest);
  return greatest + std::log(sum);
}

// Attention of one query row: scores over the visible positions, softmax, weighted values.
struct AttentionRow {
  const TensorView& out;
  const TensorView& q;
  const KvPages& pages;
  const AttentionProblem& problem;

  // Keys or values of a position and KV head.
  void read_row(bool values, const SequenceRows& sequence, std::int64_t position, std::int64_t kv_head,
                std::vector<double>& row) const {
    const TensorView& from = values ? pages.values : pages.keys;
    const std::int64_t block = sequence.block_table[static_cast<std::size_t>(position / pages.block_size)];
    const std::int64_t slot = block * pages.block_size + position % pages.block_size;
    row.resize(static_cast<std::size_t>(problem.head_dim));
    if (pages.packed) {
      std::vector<float> numbers(row.size());
      kv_load_row({values ? pages.packed->values : pages.packed->keys, problem.head_dim}, numbers.data(),
                  packed_row(pages, from, slot, kv_head), values ? pages.value_scale : pages.key_scale);
      std::copy(numbers.begin(), numbers.end(), row.begin());
    } else {
      for (std::size_t d = 0; d < row.size(); ++d)
        row[d] = read(from, slot * problem.kv_heads + kv_head, static_cast<std::int64_t>(d));
    }
  }

  void run(const SequenceRows& sequence, std::int64_t row, std::int64_t head,
           std::vector<double>& weights) const {
    const std::int64_t position = sequence.context + row - sequence.first_row;
    const std::int64_t first =
        problem.sliding_window > 0 ? std::max<std::int64_t>(0, position - problem.sliding_window + 1) : 0;
    const std::int64_t kv_head = head / (problem.heads / problem.kv_heads);
    weights.assign(static_cast<std::size_t>(position - first + 1), 0.0);
    double greatest = -std::numeric_limits<double>::infinity();
    std::vector<double> key, value, mixed(static_cast<std::size_t>(problem.head_dim));
    for (std::int64_t p = first; p <= position; ++p) {
      double dot = 0;
      read_row(false, sequence, p, kv_head, key);
      for (std::int64_t d = 0; d < problem.head_dim; ++d)
        dot += read(q, row * problem.heads + head, d) * key[static_cast<std::size_t>(d)];
      weights[static_cast<std::size_t>(p - first)] = dot * static_cast<double>(problem.scale);
      greatest = std::max(greatest, weights[static_cast<std::size_t>(p - first)]);
    }
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - greatest);
    for (std::int64_t p = first; p <= position; ++p) {
      read_row(true, sequence, p, kv_head, value);
      for (std::size_t d = 0; d < mixed.size(); ++d)
        mixed[d] += weights[static_cast<std::size_t>(p - first)] * value[d];
    }
    for (std::int64_t d = 0; d < problem.head_dim; ++d)
      write(out, row, head * problem.head_dim + d, mixed[static_cast<std::size_t>(d)] / sum);
  }
};

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
    auto prepared = std::make_unique<ReferenceWeight>();
    prepared->out_features = weight.rows();
    prepared->in_features = weight.cols();
    prepared->compute = compute;
    prepared->kernel = "double";
    prepared->values.reserve(static_cast<std::size_t>(weight.rows() * weight.cols()));
    for (std::int64_t n = 0; n < weight.rows(); ++n)
      for (std::int64_t k = 0; k < weight.cols(); ++k) {
        const float value = static_cast<float>(read(weight, n, k));
        prepared->values.push_back(compute == Compute::kBFloat16 ? to_float(to_bfloat16(value)) : value);
      }
    prepared->bytes = prepared->values.size() * sizeof(float);
    return prepared;
  }

  std::unique_ptr<PreparedWeight> prepare_quantized(const QuantizedMatrix& matrix, Compute compute) override {
    if (matrix.scheme.activation_scale == ActivationScale::kNone) {
      auto values = std::make_unique<ReferenceWeight>();
      values->out_features = matrix.out_features;
      values->in_features = matrix.in_features;
      values->compute = compute;
      values->kernel = "double";
      values->keeps_codes = true;
      values->values.resize(matrix.codes.size());
      dequantize(matrix, values->values);
      values->bytes = values->values.size() * sizeof(float);
      return values;
    }
    check_low_precision(matrix);
    auto prepared = std::make_unique<ReferenceCodes>();
    prepared->out_features = matrix.out_features;
    prepared->in_features = matrix.in_features;
    prepared->compute = compute;
    prepared->kernel = "double";
    prepared->bytes = matrix.codes.size() + matrix.zeros.size() + matrix.scales.size() * sizeof(float);
    prepared->matrix = matrix;
    return prepared;
  }

  bool keeps_codes(const QuantizedMatrix&, Compute) const override { return true; }

  void linear(const TensorView& y, const TensorView& x, const PreparedWeight& w,
              const TensorView& bias) override {
    require_on(device(), "linear", {&y, &x, &bias});
    if (const auto* codes = dynamic_cast<const ReferenceCodes*>(&w)) {
      for (std::int64_t m = 0; m < x.rows(); ++m) {
        const RoundedRow row = round_row(x, m, codes->matrix);
        for (std::int64_t n = 0; n < w.out_features; ++n)
          write(y, m, n,
                multiply_codes(row, codes->matrix, n) +
                    (bias.pointer == nullptr ? 0.0 : static_cast<double>(bias.as<const float>()[n])));
      }
      return;
    }
    const ReferenceWeight& weight = as_reference(w);
    std::vector<double> row(static_cast<std::size_t>(weight.in_features));
    for (std::int64_t m = 0; m < x.rows(); ++m) {
      for (std::int64_t k = 0; k < weight.in_features; ++k) row[static_cast<std::size_t>(k)] = read(x, m, k);
      for (std::int64_t n = 0; n < weight.out_features; ++n) {
        double sum = 0;
        for (std::int64_t k = 0; k < weight.in_features; ++k)
          sum += row[static_cast<std::size_t>(k)] * static_cast<double>(weight.row(n)[k]);
        if (bias.pointer != nullptr) sum += static_cast<double>(bias.as<const float>()[n]);
        write(y, m, n, sum);
      }
    }
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
        write(y, row, h,
              (read(x, row, h) - mean) / root * static_cast<double>(gain.as<const float>()[h]) + shift);
      }
    }
  }

  void rope(const TensorView& x, std::span<const std::int32_t> positions, const TensorView& cosines,
            const TensorView& sines) override {
    require_on(device(), "rope", {&x, &cosines, &sines});
    const std::int64_t heads = x.shape[1], half = x.cols() / 2;
    for (std::int64_t row = 0; row < x.rows(); ++row) {
      const std::int64_t position = positions[static_cast<std::size_t>(row / heads)];
      for (std::int64_t i = 0; i < half; ++i) {
        const double c = read(cosines, position, i), s = read(sines, position, i);
        const double a = read(x, row, i), b = read(x, row, i + half);
        write(x, row, i, a * c - b * s);
        write(x, row, i + half, b * c + a * s);
      }
    }
  }

  void store_kv(const KvPages& pages, const TensorView& k, const TensorView& v,
                std::span<const std::int64_t> slots) override {
    require_on(device(), "store_kv", {&pages.keys, &pages.values, &k, &v});
    if (pages.packed)
      return each_packed_row(k, slots, [&](std::int64_t row, std::int64_t slot, std::int64_t head) {
        kv_store_row({pages.packed->keys, k.cols()}, packed_row(pages, pages.keys, slot, head),
                     k.row<const float>(row), pages.key_scale);
        kv_store_row({pages.packed->values, k.cols()}, packed_row(pages, pages.values, slot, head),
                     v.row<const float>(row), pages.value_scale);
      });
    each_kv_element(k, slots, [&](std::int64_t row, std::int64_t slot, std::int64_t d) {
      write(pages.keys, slot, d, read(k, row, d));
      write(pages.values, slot, d, read(v, row, d));
    });
  }

  void load_kv(const TensorView& k, const TensorView& v, const KvPages& pages,
               std::span<const std::int64_t> slots) override {
    require_on(device(), "load_kv", {&pages.keys, &pages.values, &k, &v});
    if (pages.packed)
      return each_packed_row(k, slots, [&](std::int64_t row, std::int64_t slot, std::int64_t head) {
        kv_load_row({pages.packed->keys, k.cols()}, k.row<float>(row),
                    packed_row(pages, pages.keys, slot, head), pages.key_scale);
        kv_load_row({pages.packed->values, k.cols()}, v.row<float>(row),
                    packed_row(pages, pages.values, slot, head), pages.value_scale);
      });
    each_kv_element(k, slots, [&](std::int64_t row, std::int64_t slot, std::int64_t d) {
      write(k, row, d, read(pages.keys, slot, d));
      write(v, row, d, read(pages.values, slot, d));
    });
  }

  void attention(const TensorView& out, const TensorView& q, const KvPages& pages,
                 std::span<const SequenceRows> sequences, const AttentionProblem& problem) override {
    require_on(device(), "attention", {&out, &q, &pages.keys, &pages.values});
    const AttentionRow one{out, q, pages, problem};
    std::vector<double> weights;
    for (const SequenceRows& sequence : sequences)
      for (std::int64_t row = sequence.first_row; row < sequence.first_row + sequence.rows; ++row)
        for (int head = 0; head < problem.heads; ++head) one.run(sequence, row, head, weights);
  }

  void gated_activation(const TensorView& y, const TensorView& gate, const TensorView& up,
                        Activation act) override {
    require_on(device(), "gated_activation", {&y, &gate, &up});
    for (std::int64_t row = 0; row < gate.rows(); ++row)
      for (std::int64_t i = 0; i < gate.cols(); ++i)
        write(y, row, i, activated(read(gate, row, i), act) * read(up, row, i));
  }

  void activate(const TensorView& y, const TensorView& x, Activation act) override {
    require_on(device(), "activate", {&y, &x});
    for (std::int64_t row = 0; row < x.rows(); ++row)
      for (std::int64_t i = 0; i < x.cols(); ++i) write(y, row, i, activated(read(x, row, i), act));
  }

  void add(const TensorView& into, const TensorView& x) override {
    require_on(device(), "add", {&into, &x});
    for (std::int64_t row = 0; row < x.rows(); ++row)
      for (std::int64_t i = 0; i < x.cols(); ++i) write(into, row, i, read(into, row, i) + read(x, row, i));
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

  void drain_gram(std::span<double> triangle, const TensorView& g) override {
    require_on(device(), "drain_gram", {&g});
    std::size_t at = 0;
    for (std::int64_t i = 0; i < g.rows(); ++i)
      for (std::int64_t j = 0; j < g.cols(); ++j) {
        float& element = g.row<float>(i)[j];
        if (j >= i) triangle[at++] += static_cast<double>(element);
        element = 0;
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
    const ReferenceWeight& square = as_reference(g);
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
