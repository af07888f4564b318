// Operations turned into arguments of kernels: shapes checked by callers become sizes, host lists become
// device arrays, results that belong to the host come back. Scratch memory lives until the work that uses it
// has been ordered before its release.
#include "device/cuda/cuda_backend.h"

#include <algorithm>

#include "base/error.h"
#include "base/threads.h"
#include "device/column_rounder.h"
#include "device/cuda/attention_tiles.h"
#include "device/cuda/cuda_peaks.h"
#include "device/cuda/cuda_weight.h"
#include "device/cuda/device_factor.h"
#include "device/cuda/recent_lists.h"
#include "device/device_peaks.h"
#include "device/difference_maker.h"
#include "device/gram_total.h"
#include "device/low_precision.h"
#include "device/on_device.h"
#include "device/row_sums.h"
#include "device/token_drawer.h"

namespace llmq {
namespace {

// numbers of a Gram matrix on their way to the host
constexpr std::int64_t kDrainedAtOnce = std::int64_t{1} << 22;

cuda::Rows rows_of(const TensorView& view) { return {view.pointer, view.row_stride, element_of(view.dtype)}; }

cuda::KvStore store_of(const KvPages& pages, const TensorView& numbers, int kv_heads, int head_dim,
                       KvFormat format, float scale) {
  return {numbers.pointer,
          {format, head_dim},
          scale,
          kv_heads,
          pages.block_size,
          pages.packed.has_value(),
          pages.packed ? cuda::Element::kF32 : element_of(numbers.dtype)};
}
cuda::KvStore keys_of(const KvPages& pages, int kv_heads, int head_dim) {
  return store_of(pages, pages.keys, kv_heads, head_dim, pages.packed.value_or(KvFormats{}).keys,
                  pages.key_scale);
}
cuda::KvStore values_of(const KvPages& pages, int kv_heads, int head_dim) {
  return store_of(pages, pages.values, kv_heads, head_dim, pages.packed.value_or(KvFormats{}).values,
                  pages.value_scale);
}

// By absolute position and by block table, one entry for each row of a batch (kernels/cuda/attention.h,
// tile_attention.h).
struct RowPlaces {
  std::vector<std::int64_t> positions, first_block;
  std::vector<std::int32_t> tables;
};

RowPlaces places_of(std::span<const SequenceRows> sequences) {
  RowPlaces places;
  std::size_t rows = 0;
  for (const SequenceRows& s : sequences)
    rows = std::max(rows, static_cast<std::size_t>(s.first_row + s.rows));
  places.positions.resize(rows);
  places.first_block.resize(rows);
  for (const SequenceRows& s : sequences) {
    for (std::int64_t i = 0; i < s.rows; ++i) {
      places.positions[static_cast<std::size_t>(s.first_row + i)] = s.context + i;
      places.first_block[static_cast<std::size_t>(s.first_row + i)] =
          static_cast<std::int64_t>(places.tables.size());
    }
    places.tables.insert(places.tables.end(), s.block_table.begin(), s.block_table.end());
  }
  return places;
}

class CudaBackend final : public Backend,
                          public ColumnRounder,
                          public DifferenceMaker,
                          public Factorizer,
                          public RowSums,
                          public TokenDrawer,
                          public DevicePeaks,
                          public GramTotals {
 public:
  CudaBackend(std::unique_ptr<CudaDevice> device, int threads) : device_(std::move(device)), pool_(threads) {}

  std::string name() const override { return device_->name(); }
  std::string arithmetic() const override { return device_->arithmetic(); }
  Device device() const override { return device_->place(); }
  int threads() const override { return pool_.size(); }
  ThreadPool& workers() override { return pool_; }
  const Extensions& extensions() const override { return extensions_; }

  Buffer allocate(std::size_t bytes) override { return Buffer(device_->memory(), bytes); }
  std::uint64_t peak_bytes() const override { return device_->peak_bytes(); }

  void upload(const TensorView& to, const void* from_host) override {
    require_on(device(), "upload", {&to});
    const char* const from = static_cast<const char*>(from_host);
    if (to.contiguous()) return device_->copy_in(to.pointer, from, to.bytes());
    for_each_row(to, [&](std::size_t offset, std::size_t bytes, char* row) {
      device_->copy_in(row, from + offset, bytes);
    });
  }
  void download(void* to_host, const TensorView& from) override {
    require_on(device(), "download", {&from});
    char* const to = static_cast<char*>(to_host);
    if (from.contiguous()) return device_->copy_out(to, from.pointer, from.bytes());
    for_each_row(from, [&](std::size_t offset, std::size_t bytes, const char* row) {
      device_->copy_out(to + offset, row, bytes);
    });
  }
  void synchronize() override { device_->synchronize(); }
  bool copy_from(const TensorView& to, Backend& owner, const TensorView& from) override {
    auto* const other = dynamic_cast<CudaBackend*>(&owner);
    if (other == nullptr) return false;
    require_on(device(), "copy_from", {&to});
    require_on(other->device(), "copy_from", {&from});
    const auto element = static_cast<std::size_t>(element_bytes(to.dtype));
    return device_->copy_across(
        *other->device_,
        {to.pointer, from.pointer, static_cast<std::size_t>(to.row_stride) * element,
         static_cast<std::size_t>(from.row_stride) * element, static_cast<std::size_t>(to.cols()) * element,
         static_cast<std::size_t>(to.rows())});
  }
  void begin_range(const std::string& name) override { device_->begin_range(name); }
  void end_range() noexcept override { device_->end_range(); }

  std::unique_ptr<PreparedWeight> prepare(const TensorView& weight, Compute compute) override {
    require_on({}, "prepare", {&weight});
    return dense_weight(*device_, weight, compute);
  }
  std::unique_ptr<PreparedWeight> prepare_quantized(const QuantizedMatrix& matrix, Compute compute) override {
    return code_weight(*device_, matrix, compute);
  }
  bool keeps_codes(const QuantizedMatrix& matrix, Compute) const override {
    return matrix.kept_columns.empty();
  }

  void linear(const TensorView& y, const TensorView& x, const PreparedWeight& w,
              const TensorView& bias) override {
    require_on(device(), "linear", {&y, &x, &bias});
    const CudaWeight& weight = own(w);
    if (weight.activation != ActivationScale::kNone)
      multiply_rounded(y, x, weight, bias.as<const float>());
    else if (weight.form)
      multiply_fragments(y, x, weight, on_fragments(y, x, weight, bias.as<const float>()));
    else if (weight.keeps_codes)
      multiply(kernels().code_product, y, x, weight, weight.coded(), bias.as<const float>());
    else
      multiply(kernels().product, y, x, weight, weight.dense(), bias.as<const float>());
  }

  void embed(const TensorView& y, const TensorView& table, std::span<const std::int32_t> ids) override {
    require_on(device(), "embed", {&y, &table});
    const Buffer on_device = copy_of(ids);
    start("embed", kernels().embed,
          {static_cast<std::int64_t>(ids.size()) * table.cols(), table.cols(), rows_of(y), rows_of(table),
           on_device.as<std::int32_t>()},
          y);
  }

  void rms_norm(const TensorView& y, const TensorView& x, const TensorView& gain, float eps) override {
    require_on(device(), "rms_norm", {&y, &x, &gain});
    start("rms_norm", kernels().rms_norm,
          {x.rows(), x.cols(), rows_of(y), rows_of(x), gain.as<const float>(), eps}, x);
  }

  void layer_norm(const TensorView& y, const TensorView& x, const TensorView& gain, const TensorView& bias,
                  float eps) override {
    require_on(device(), "layer_norm", {&y, &x, &gain, &bias});
    start("layer_norm", kernels().layer_norm,
          {x.rows(), x.cols(), rows_of(y), rows_of(x), gain.as<const float>(), bias.as<const float>(), eps},
          x);
  }

  void rope(const TensorView& x, std::span<const std::int32_t> positions, const TensorView& cosines,
            const TensorView& sines) override {
    require_on(device(), "rope", {&x, &cosines, &sines});
    const auto on_device = list_of(positions);
    start("rope", kernels().rope,
          {x.rows() * (x.cols() / 2), x.shape[1], x.cols() / 2, rows_of(x), rows_of(cosines), rows_of(sines),
           on_device->as<std::int32_t>()},
          x);
  }

  void store_kv(const KvPages& pages, const TensorView& k, const TensorView& v,
                std::span<const std::int64_t> slots) override {
    move_kv("store_kv", pages, k, v, slots, true);
  }
  void load_kv(const TensorView& k, const TensorView& v, const KvPages& pages,
               std::span<const std::int64_t> slots) override {
    move_kv("load_kv", pages, k, v, slots, false);
  }

  void attention(const TensorView& out, const TensorView& q, const KvPages& pages,
                 std::span<const SequenceRows> sequences, const AttentionProblem& problem) override {
    require_on(device(), "attention", {&out, &q, &pages.keys, &pages.values});
    if (problem.head_dim > cuda::kMostHeadDim)
      fail(ErrorKind::kUnsupported,
           "heads of {} dimensions are more than the {} that attention on CUDA takes", problem.head_dim,
           cuda::kMostHeadDim);
    const RowPlaces places = places_of(sequences);
    if (out.dtype == DType::kBF16 && problem.head_dim <= cuda::kMostTileDim && q.contiguous() &&
        out.contiguous())
      return tile_attention(out, q, pages, sequences, places, problem);
    const auto positions = list_of(std::span<const std::int64_t>(places.positions)),
               first_block = list_of(std::span<const std::int64_t>(places.first_block)),
               tables = list_of(std::span<const std::int32_t>(places.tables));
    cuda::PlainAttention::Arguments a;
    a.rows = static_cast<std::int64_t>(places.positions.size());
    a.heads = problem.heads;
    a.head_dim = problem.head_dim;
    a.scale = problem.scale;
    a.window = problem.sliding_window;
    a.q = rows_of(q);
    a.out = rows_of(out);
    if (out.shape.rank() != 2) a.out.row = std::int64_t{problem.heads} * problem.head_dim;
    a.keys = keys_of(pages, problem.kv_heads, problem.head_dim);
    a.values = values_of(pages, problem.kv_heads, problem.head_dim);
    a.positions = positions->as<std::int64_t>();
    a.first_block = first_block->as<std::int64_t>();
    a.tables = tables->as<std::int32_t>();
    start("attention", kernels().attention, a, q);
  }

  void gated_activation(const TensorView& y, const TensorView& gate, const TensorView& up,
                        Activation act) override {
    require_on(device(), "gated_activation", {&y, &gate, &up});
    start("gated_activation", kernels().gated_activation,
          {gate.rows() * gate.cols(), gate.cols(), rows_of(y), rows_of(gate), rows_of(up), act}, gate);
  }

  void activate(const TensorView& y, const TensorView& x, Activation act) override {
    require_on(device(), "activate", {&y, &x});
    start("activate", kernels().activate, {x.rows() * x.cols(), x.cols(), rows_of(y), rows_of(x), act}, x);
  }

  void add(const TensorView& into, const TensorView& x) override {
    require_on(device(), "add", {&into, &x});
    start("add", kernels().add, {x.rows() * x.cols(), x.cols(), rows_of(into), rows_of(x)}, x);
  }

  void convert(const TensorView& to, const TensorView& from) override {
    require_on(device(), "convert", {&to, &from});
    start("convert", kernels().convert, {from.rows() * from.cols(), from.cols(), rows_of(to), rows_of(from)},
          from);
  }

  void score_rows(const TensorView& logits, std::span<const std::int32_t> targets,
                  std::span<RowScore> scores) override {
    require_on(device(), "score_rows", {&logits});
    const std::size_t rows = scores.size();
    const Buffer on_device = copy_of(targets), log_prob = scratch(rows * sizeof(double)),
                 argmax = scratch(rows * sizeof(std::int32_t));
    start("score_rows", kernels().score_rows,
          {static_cast<std::int64_t>(rows), logits.cols(), rows_of(logits), on_device.as<std::int32_t>(),
           log_prob.as<double>(), argmax.as<std::int32_t>()},
          logits);
    const auto logs = copy_back<double>(log_prob, rows);
    const auto greatest = copy_back<std::int32_t>(argmax, rows);
    for (std::size_t r = 0; r < rows; ++r) scores[r] = {logs[r], greatest[r]};
  }

  void draw_tokens(const TensorView& logits, std::span<const TokenDraw> draws,
                   std::span<std::int32_t> tokens) override {
    require_on(device(), "draw_tokens", {&logits});
    const Buffer on_device = copy_of(draws), drawn = scratch(tokens.size_bytes());
    start("draw_tokens", kernels().draw_token,
          {static_cast<std::int64_t>(draws.size()), logits.cols(), rows_of(logits), on_device.as<TokenDraw>(),
           drawn.as<std::int32_t>()},
          logits);
    device_->copy_out(tokens.data(), drawn.get(), tokens.size_bytes());
  }

  void divergence(const TensorView& p, const TensorView& q, std::span<double> kl) override {
    require_on(device(), "divergence", {&p, &q});
    const Buffer result = scratch(kl.size_bytes());
    start("divergence", kernels().divergence,
          {static_cast<std::int64_t>(kl.size()), p.cols(), rows_of(p), rows_of(q), result.as<double>()}, p);
    device_->copy_out(kl.data(), result.get(), kl.size_bytes());
  }

  void gram(const TensorView& g, const TensorView& x, std::int64_t before) override {
    require_on(device(), "gram", {&g, &x});
    require_gram_start(before);
    if (x.dtype == DType::kBF16)
      return start("gram", kernels().gram_bf16,
                   {g.as<float>(), g.row_stride, x.as<const BFloat16>(), x.row_stride, x.rows(), x.cols()},
                   x);
    const float* const numbers = x.as<const float>();
    sum_over_rows("gram",
                  {x.cols(), x.cols(), x.rows(), g.as<float>(), g.row_stride, numbers, x.row_stride, numbers,
                   x.row_stride, true, true},
                  x);
  }

  void drain_gram(std::span<double> triangle, const TensorView& g) override {
    require_on(device(), "drain_gram", {&g});
    const std::int64_t k = g.cols(),
                       most = std::max<std::int64_t>(1, kDrainedAtOnce / std::max<std::int64_t>(1, k));
    std::vector<float> numbers;
    for (std::int64_t first = 0; first < k; first += most) {
      const std::int64_t rows = std::min(most, k - first);
      numbers.resize(static_cast<std::size_t>(rows * k));
      download(numbers.data(), g.row_slice(first, rows));
      pool_.parallel_for(static_cast<std::size_t>(rows), [&](std::size_t at, int) {
        const std::int64_t i = first + static_cast<std::int64_t>(at);
        double* const sums = triangle.data() + i * (k - 1) - i * (i - 1) / 2;  // sums[j]: j from i on
        const float* const row = numbers.data() + static_cast<std::int64_t>(at) * k;
        for (std::int64_t j = i; j < k; ++j) sums[j] += static_cast<double>(row[j]);
      });
    }
    clear(g);
  }
  void clear(const TensorView& g) override {
    require_on(device(), "clear", {&g});
    if (g.contiguous()) return device_->zero(g.pointer, g.bytes());
    for_each_row(g, [&](std::size_t, std::size_t bytes, char* row) { device_->zero(row, bytes); });
  }
  std::unique_ptr<GramTotal> gram_total(std::int64_t channels) override;

  void channel_stats(const TensorView& x, std::span<double> absolute_sum,
                     std::span<float> absolute_max) override {
    require_on(device(), "channel_stats", {&x});
    const Buffer sums = copy_of(std::span<const double>(absolute_sum)),
                 maxima = copy_of(std::span<const float>(absolute_max));
    start("channel_stats", kernels().channel_stats,
          {x.cols(), x.rows(), rows_of(x), sums.as<double>(), maxima.as<float>()}, x);
    device_->copy_out(absolute_sum.data(), sums.get(), absolute_sum.size_bytes());
    device_->copy_out(absolute_max.data(), maxima.get(), absolute_max.size_bytes());
  }

  void quadratic_form(std::span<double> loss, const TensorView& d, const PreparedWeight& g) override {
    require_on(device(), "quadratic_form", {&d});
    const CudaWeight& square = own(g);
    const Buffer products = scratch(static_cast<std::size_t>(d.rows() * d.cols()) * sizeof(float)),
                 losses = scratch(loss.size_bytes());
    const TensorView t = products.view(DType::kF32, Shape{d.rows(), d.cols()});
    if (square.form) {  // the matrix units take BF16: d is rounded once, in one of its two places
      const Buffer rounded = scratch(static_cast<std::size_t>(d.rows() * d.cols()) * sizeof(BFloat16));
      const TensorView narrow = rounded.view(DType::kBF16, Shape{d.rows(), d.cols()});
      convert(narrow, d);
      multiply_fragments(t, narrow, square, on_fragments(t, narrow, square, nullptr));
    } else {
      multiply(kernels().product, t, d, square, square.dense(), nullptr);
    }
    start("quadratic_form", kernels().row_dots,
          {d.rows(), d.cols(), rows_of(d), rows_of(t), losses.as<double>()}, d);
    device_->copy_out(loss.data(), losses.get(), loss.size_bytes());
  }

  double measure_reading() override { return measure_cuda_reading(*device_); }
  double measure_products(ArithmeticKind kind) override { return measure_cuda_products(*device_, kind); }

  std::uint64_t free_bytes() const override { return device_->free_bytes(); }
  std::uint64_t scratch_bytes() const override {
    return static_cast<std::uint64_t>(device_->scratch_bytes());
  }

  std::string why_the_host() const override { return device_->why_no_cholesky(); }
  std::unique_ptr<DeviceFactor> factorize(const LowerTriangle& matrix) override {
    return factorize_on(*device_, matrix, pool_);
  }

  std::int64_t rows_at_once(std::int64_t row_bytes) const override {
    return rounded_rows(device_->scratch_bytes(), row_bytes);
  }

  void tile_product(const TensorView& sum, const TensorView& a, const TensorView& b,
                    bool accumulate) override {
    require_on(device(), "tile_product", {&sum, &a, &b});
    sum_over_rows("tile_product",
                  {sum.rows(), sum.cols(), a.rows(), sum.as<float>(), sum.row_stride, a.as<const float>(),
                   a.row_stride, b.as<const float>(), b.row_stride, accumulate},
                  sum);
  }
  void tile_round(const TileColumns& c, std::int64_t rows) override {
    start_rows("tile_round", kernels().tile_round, c, c.columns, rows);
  }
  void tile_descend(const TileColumns& c, std::int64_t rows) override {
    start_rows("tile_descend", kernels().tile_descend, c, c.columns, rows);
  }
  void tile_solve(const TileColumns& c, std::int64_t rows) override {
    start_rows("tile_solve", kernels().tile_solve, c, c.columns, rows);
  }
  void try_scales(const TrialSearch& s, std::int64_t rows) override {
    start_rows("try_scales", kernels().try_scales, s, s.columns.columns, rows);
  }
  void choose_scales(const RangeSearch& s, std::int64_t rows) override {
    start_rows("choose_scales", kernels().choose_scales, s, s.columns, rows);
  }
  void target_group(const GroupTarget& g, std::int64_t rows) override {
    start_rows("target_group", kernels().target_group, g, g.columns, rows);
  }
  void take_group(const GroupChoice& g, std::int64_t rows) override {
    start_rows("take_group", kernels().take_group, g, g.columns, rows);
  }
  void refit_group(const GroupRefit& g, std::int64_t rows) override {
    start_rows("refit_group", kernels().refit_group, g, g.columns, rows);
  }
  void place_columns(const TensorView& placed, const TensorView& weight,
                     const PlacedColumns& places) override {
    require_on(device(), "place_columns", {&placed, &weight});
    start("place_columns", kernels().place_columns,
          {places, weight.as<const float>(), placed.as<float>(), weight.rows()}, weight);
  }
  void make_differences(const RowDifferences& d) override {
    start("make_differences", kernels().make_differences, d, rows_at(d.difference, d.items, d.columns));
  }
  void sum_input_errors(const InputErrors& e) override {
    start("sum_input_errors", kernels().sum_input_errors, e, rows_at(e.x, e.rows, e.columns));
  }
  void sum_squares(const RowSquares& s) override {
    start("sum_squares", kernels().sum_squares, s, rows_at(s.x, s.rows, s.columns));
  }
  void soften_rows(const SoftRows& r) override {
    start("soften_rows", kernels().soften_rows, r, rows_at(r.x, r.rows, r.columns));
  }
  void share_columns(const ColumnShares& s) override {
    start("share_columns", kernels().share_columns, s, rows_at(s.rows.x, s.rows.rows, s.rows.columns));
  }
  void write_codes(const PlacedCodes& p, std::int64_t rows) override {
    start_rows("write_codes", kernels().write_codes, p, p.places.columns, rows);
  }

 private:
  const cuda::CudaKernels& kernels() const { return device_->kernels(); }

  template <class Arguments>
  void start(const char* operation, int (*kernel)(const Arguments&, void*),
             const std::type_identity_t<Arguments>& arguments, const TensorView& input) {
    const int code = kernel(arguments, device_->stream());
    if (code != 0) device_->fail_launch(operation, code, input.shape.text());
  }

  TensorView rows_at(const float* x, std::int64_t rows, std::int64_t columns) const {
    return TensorView(static_cast<const void*>(x), DType::kF32, {rows, columns}, device());
  }

  template <class Arguments, class Problem>
  void start_rows(const char* operation, int (*kernel)(const Arguments&, void*), const Problem& problem,
                  std::int64_t columns, std::int64_t rows) {
    start(operation, kernel, {problem, rows},
          TensorView(static_cast<const void*>(nullptr), DType::kF32, {columns, rows}, device()));
  }

  // Either kernel gives the same bits.
  void sum_over_rows(const char* operation, const cuda::TileProductArguments& p, const TensorView& input) {
    if (cuda::is_aligned(p)) return start(operation, kernels().tile_product, p, input);
    start(operation, kernels().product,
          {p.rows,
           p.columns,
           p.depth,
           p.c,
           p.c_row,
           {p.a, 1, p.a_row},
           {p.b, 1, p.b_row},
           nullptr,
           p.accumulate,
           p.upper},
          input);
  }

  Buffer scratch(std::size_t bytes) { return Buffer(device_->memory(), std::max<std::size_t>(bytes, 1)); }

  template <class T>
  Buffer copy_of(std::span<const T> values) {
    Buffer buffer = scratch(values.size_bytes());
    device_->copy_in(buffer.get(), values.data(), values.size_bytes());
    return buffer;
  }

  // As copy_of(), of what comes again and is only read.
  template <class T>
  std::shared_ptr<const Buffer> list_of(std::span<const T> values) {
    return recent_.find(std::as_bytes(values), [&](std::span<const std::byte>) { return copy_of(values); });
  }

  template <class T>
  std::vector<T> copy_back(const Buffer& from, std::size_t count) {
    std::vector<T> values(count);
    device_->copy_out(values.data(), from.get(), count * sizeof(T));
    return values;
  }

  const CudaWeight& own(const PreparedWeight& weight) const {
    const auto* mine = dynamic_cast<const CudaWeight*>(&weight);
    if (mine == nullptr || mine->owner != device_.get())
      fail(ErrorKind::kInternal, "a weight prepared by another backend reached {}", name());
    return *mine;
  }

  template <class Kernel, class Operand>
  void multiply(Kernel kernel, const TensorView& y, const TensorView& x, const CudaWeight& w,
                const Operand& operand, const float* bias) {
    start("linear", kernel,
          {x.rows(),
           w.out_features,
           w.in_features,
           y.as<float>(),
           y.row_stride,
           {x.pointer, x.row_stride, 1, element_of(x.dtype)},
           operand,
           bias,
           false,
           false},
          x);
  }

  cuda::LinearArguments on_fragments(const TensorView& y, const TensorView& x, const CudaWeight& w,
                                     const float* bias) const {
    cuda::LinearArguments a;
    a.y = y.as<float>();
    a.y_stride = y.row_stride;
    a.x = x.pointer;
    a.x_stride = x.row_stride;
    a.weight = w.fragments.as<std::uint32_t>();
    a.scale = w.group_scales.as<float>();
    a.zero = w.group_zeros.as<float>();
    a.bias = bias;
    a.rows = x.rows();
    a.features = w.out_features;
    a.columns = w.in_features;
    a.group = w.group;
    return a;
  }

  void multiply_fragments(const TensorView& y, const TensorView& x, const CudaWeight& w,
                          const cuda::LinearArguments& a) {
    if (a.rows == 0 || a.features == 0) return;
    const int code = kernels().linear(*w.form, a, device_->stream());
    if (code != 0)
      device_->fail_launch("linear", code, fmt::format("{} by {}", x.shape.text(), y.shape.text()));
  }

  // Inputs of 8 bits (device/low_precision.h).
  void multiply_rounded(const TensorView& y, const TensorView& x, const CudaWeight& w, const float* bias) {
    const bool in_groups = w.activation == ActivationScale::kTokenGroup,
               integer = w.type == WeightType::kInteger;
    const FragmentLayout layout = w.layout();
    const std::int64_t rows = x.rows(), width = integer ? layout.positions() : w.in_features,
                       scales = in_groups ? w.groups : 1;
    const Buffer rounded = scratch(static_cast<std::size_t>(rows * width) * (integer ? 1 : sizeof(BFloat16))),
                 row_scales = scratch(static_cast<std::size_t>(rows * scales) * sizeof(float)),
                 row_sums = scratch(w.group_zeros.bytes() == 0
                                        ? 0
                                        : static_cast<std::size_t>(rows * w.groups) * sizeof(std::int32_t));
    if (integer) device_->zero(rounded.get(), rounded.bytes());
    cuda::RoundInputs::Arguments round;
    round.rows = rows;
    round.columns = w.in_features;
    round.group = in_groups ? w.group : w.in_features;
    round.x = rows_of(x);
    round.scales = row_scales.as<float>();
    round.top = input_top(w.type);
    round.least = kLeastInputScale;
    round.fixed = w.activation == ActivationScale::kTensor ? w.input_scale : 0.0f;
    round.e4m3 = integer ? nullptr : rounded.as<BFloat16>();
    round.codes = integer ? rounded.as<std::int8_t>() : nullptr;
    round.positions = width;
    round.weight_group = layout.group;
    round.padded_group = layout.padded_group();
    start("linear (rounding of inputs)", kernels().round_inputs, round, x);
    const bool has_zeros = integer && w.group_zeros.bytes() > 0;
    if (has_zeros)
      start("linear (sums of inputs)", kernels().sum_codes,
            {rows * w.groups, w.groups, width, layout.padded_group(), rounded.as<std::int8_t>(),
             row_sums.as<std::int32_t>()},
            x);
    cuda::LinearArguments a = on_fragments(y, x, w, bias);
    a.x = rounded.get();
    a.x_stride = width;
    a.row_scale = row_scales.as<float>();
    a.row_scales = scales;
    a.row_sum = has_zeros ? row_sums.as<std::int32_t>() : nullptr;
    multiply_fragments(y, x, w, a);
  }

  // As many rows at once as leave their partial results within the device's scratch_bytes().
  void tile_attention(const TensorView& out, const TensorView& q, const KvPages& pages,
                      std::span<const SequenceRows> sequences, const RowPlaces& places,
                      const AttentionProblem& problem) {
    const auto rows = static_cast<std::int64_t>(places.positions.size());
    if (rows == 0) return;
    const std::int64_t splits =
        *std::max_element(places.positions.begin(), places.positions.end()) / cuda::kSplitKeys + 1;
    const std::int64_t parts = problem.heads * splits, width = std::int64_t{problem.heads} * problem.head_dim;
    const std::int64_t most = std::max<std::int64_t>(
        1, device_->scratch_bytes() / (parts * (problem.head_dim + 2) * std::int64_t{sizeof(float)}));
    const auto held = static_cast<std::size_t>(parts * std::min(rows, most)) * sizeof(float);
    const auto positions = list_of(std::span<const std::int64_t>(places.positions)),
               tables = list_of(std::span<const std::int32_t>(places.tables));
    const Buffer mixed = scratch(held * static_cast<std::size_t>(problem.head_dim)), greatest = scratch(held),
                 sum = scratch(held);
    for (std::int64_t first = 0; first < rows; first += most) {
      const std::int64_t end = std::min(rows, first + most);
      const auto [tiles, wide_count] =
          attention_tiles(sequences, places.first_block, first, end, problem.heads / problem.kv_heads);
      const auto on_device = list_of(std::span<const cuda::AttentionTile>(tiles));
      cuda::TileAttentionArguments a;
      a.q = q.as<const float>() + first * width;
      a.keys = keys_of(pages, problem.kv_heads, problem.head_dim);
      a.values = values_of(pages, problem.kv_heads, problem.head_dim);
      a.out = out.as<BFloat16>() + first * width;
      a.tiles = on_device->as<cuda::AttentionTile>();
      a.wide_count = wide_count;
      a.tile_count = static_cast<std::int64_t>(tiles.size());
      a.tables = tables->as<std::int32_t>();
      a.positions = positions->as<std::int64_t>() + first;
      a.rows = end - first;
      a.heads = problem.heads;
      a.head_dim = problem.head_dim;
      a.scale = problem.scale;
      a.window = problem.sliding_window;
      a.splits = static_cast<int>(splits);
      a.mixed = mixed.as<float>();
      a.greatest = greatest.as<float>();
      a.sum = sum.as<float>();
      start("attention", kernels().tile_attention, a, q);
    }
  }

  void move_kv(const char* operation, const KvPages& pages, const TensorView& k, const TensorView& v,
               std::span<const std::int64_t> slots, bool to_pages) {
    require_on(device(), operation, {&pages.keys, &pages.values, &k, &v});
    const auto on_device = list_of(slots);
    const auto heads = static_cast<int>(k.shape[1]), dim = static_cast<int>(k.cols());
    const std::int64_t width = pages.packed ? heads : heads * dim;
    start(operation, kernels().move_kv,
          {static_cast<std::int64_t>(slots.size()) * width, width, rows_of(k), rows_of(v),
           keys_of(pages, heads, dim), values_of(pages, heads, dim), on_device->as<std::int64_t>(), to_pages},
          k);
  }

  const std::unique_ptr<CudaDevice> device_;
  RecentLists recent_;  // goes before the device
  ThreadPool pool_;
  const Extensions extensions_ = {this, this, this, this, this, this, this};
};

class TotalOnDevice final : public GramTotal {
 public:
  TotalOnDevice(CudaDevice& device, std::int64_t channels)
      : device_(device),
        channels_(channels),
        sums_(device.memory(), static_cast<std::size_t>(channels * (channels + 1) / 2) * sizeof(double)) {
    device.zero(sums_.get(), sums_.bytes());
  }
  void drain(const TensorView& g) override {
    require_on(device_.place(), "drain_gram", {&g});
    const int code = device_.kernels().drain_gram(
        {channels_ * channels_, channels_, g.as<float>(), g.row_stride, sums_.as<double>()},
        device_.stream());
    if (code != 0) device_.fail_launch("drain_gram", code, g.shape.text());
  }
  void read(std::span<double> triangle) const override {
    device_.copy_out(triangle.data(), sums_.get(), triangle.size_bytes());
  }

 private:
  CudaDevice& device_;
  std::int64_t channels_;
  Buffer sums_;
};

std::unique_ptr<GramTotal> CudaBackend::gram_total(std::int64_t channels) {
  try {
    return std::make_unique<TotalOnDevice>(*device_, channels);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kResource) throw;
    return nullptr;
  }
}

}  // namespace

std::shared_ptr<Backend> make_backend_on(std::unique_ptr<CudaDevice> device, int threads) {
  return std::make_shared<CudaBackend>(std::move(device), threads);
}

}  // namespace llmq
