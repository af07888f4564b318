// The CPU backend: operations cut into items for the pool, each item one call of a kernel of the level chosen
// at start.
//
// Items are whole rows, whole channels or whole (rows x panel) products; nothing is summed across items, so
// no result depends on their number. Small operations run in the calling thread.
#include "device/cpu/cpu_backend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "base/error.h"
#include "base/threads.h"
#include "device/cpu/attention_items.h"
#include "device/cpu/code_weight.h"
#include "device/cpu/cpu_products.h"
#include "device/cpu/cpu_recurrence.h"
#include "device/cpu/kv_pages.h"
#include "device/cpu/narrow_weight.h"
#include "device/cpu/packed_weight.h"
#include "device/cpu/recycled_memory.h"
#include "device/cpu/score_tiles.h"
#include "device/on_device.h"
#include "device/own_weight.h"
#include "kernels/cpu/level.h"

namespace llmq {
namespace {

constexpr std::size_t kKeptBytes = std::size_t{48} << 20;  // of freed buffers: a block's intermediates

std::string arithmetic_of(const std::string& level) { return "cpu " + level; }

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, std::string level, const CpuKernels& kernels)
      : level_(std::move(level)), kernels_(kernels), pool_(threads), scratch_(pool_.size()) {}

  std::string name() const override {
    return fmt::format("cpu ({}, {} thread{})", level_, pool_.size(), pool_.size() == 1 ? "" : "s");
  }
  std::string arithmetic() const override { return arithmetic_of(level_); }
  std::string slower_than_possible() const override;
  Device device() const override { return {}; }
  int threads() const override { return pool_.size(); }
  ThreadPool& workers() override { return pool_; }
  const Extensions& extensions() const override { return kNoExtensions; }

  Buffer allocate(std::size_t bytes) override { return Buffer(memory_, bytes); }

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
    return pack_weight(work(), weight, compute);
  }

  std::unique_ptr<PreparedWeight> prepare_quantized(const QuantizedMatrix& matrix, Compute compute) override {
    if (matrix.scheme.activation_scale == ActivationScale::kNone)
      return narrow_weight(work(), matrix, compute);
    return pack_codes(work(), matrix, compute);
  }
  bool keeps_codes(const QuantizedMatrix& matrix, Compute) const override { return can_stay_narrow(matrix); }

  void linear(const TensorView& y, const TensorView& x, const PreparedWeight& w,
              const TensorView& bias) override {
    const LinearCall call{y, x, &w, bias};
    linears({&call, 1});
  }

  void linears(std::span<const LinearCall> calls) override {
    for (; calls.size() > kMostCallsAtOnce; calls = calls.subspan(kMostCallsAtOnce))
      linears_at_once(calls.first(kMostCallsAtOnce));
    linears_at_once(calls);
  }

  void embed(const TensorView& y, const TensorView& table, std::span<const std::int32_t> ids) override {
    require_on(device(), "embed", {&y, &table});
    by_rows(static_cast<std::int64_t>(ids.size()), y.cols(), [&](std::int64_t t) {
      const std::int64_t id = ids[static_cast<std::size_t>(t)];
      float* const to = y.row<float>(t);
      if (table.dtype == DType::kF32)
        std::memcpy(to, table.row<const float>(id), static_cast<std::size_t>(y.cols()) * 4);
      else if (table.dtype == DType::kBF16)
        kernels_.to_f32(to, table.row<const BFloat16>(id), y.cols());
      else
        kernels_.half_to_f32(to, table.row<const Float16>(id), y.cols());
    });
  }

  void rms_norm(const TensorView& y, const TensorView& x, const TensorView& gain, float eps) override {
    require_on(device(), "rms_norm", {&y, &x, &gain});
    const auto kernel = kernels_.rms_norm[static_cast<int>(format_of(y.dtype))];
    by_rows(x.rows(), x.cols(), [&](std::int64_t r) {
      kernel(at(y, r), x.row<const float>(r), gain.as<const float>(), eps, x.cols());
    });
  }

  void layer_norm(const TensorView& y, const TensorView& x, const TensorView& gain, const TensorView& bias,
                  float eps) override {
    require_on(device(), "layer_norm", {&y, &x, &gain, &bias});
    const auto kernel = kernels_.layer_norm[static_cast<int>(format_of(y.dtype))];
    by_rows(x.rows(), x.cols(), [&](std::int64_t r) {
      kernel(at(y, r), x.row<const float>(r), gain.row<const float>(r % gain.rows()), bias.as<const float>(),
             eps, x.cols());
    });
  }

  void rope(const TensorView& x, std::span<const std::int32_t> positions, const TensorView& cosines,
            const TensorView& sines, RopePairs pairs) override {
    require_on(device(), "rope", {&x, &cosines, &sines});
    const auto kernel = pairs == RopePairs::kNeighbours ? kernels_.rope_neighbours : kernels_.rope;
    const std::int64_t heads = x.shape[1];
    by_rows(static_cast<std::int64_t>(positions.size()), heads * x.cols(), [&](std::int64_t t) {
      const std::int64_t position = positions[static_cast<std::size_t>(t)];
      for (std::int64_t h = 0; h < heads; ++h)
        kernel(x.row<float>(t * heads + h), cosines.row<const float>(position),
               sines.row<const float>(position), x.cols() / 2);
    });
  }

  void store_kv(const KvPages& pages, const TensorView& k, const TensorView& v,
                std::span<const std::int64_t> slots) override {
    require_on(device(), "store_kv", {&pages.keys, &pages.values, &k, &v});
    store_in_pages(pool_, pages, k, v, slots);
  }

  void load_kv(const TensorView& k, const TensorView& v, const KvPages& pages,
               std::span<const std::int64_t> slots) override {
    require_on(device(), "load_kv", {&pages.keys, &pages.values, &k, &v});
    load_from_pages(pool_, k, v, pages, slots);
  }

  void attention(const TensorView& out, const TensorView& q, const KvPages& pages,
                 std::span<const SequenceRows> sequences, const AttentionProblem& problem) override {
    require_on(device(), "attention", {&out, &q, &pages.keys, &pages.values, &problem.sinks});
    attend(work(), out, q, pages, sequences, problem);
  }

  void causal_conv(const TensorView& y, const TensorView& x, const TensorView& weight,
                   const TensorView& before) override {
    require_on(device(), "causal_conv", {&y, &x, &weight, &before});
    convolve(work(), y, x, weight, before);
  }

  void delta_rule(const TensorView& out, const TensorView& q, const TensorView& k, const TensorView& v,
                  const DeltaGates& gates, const TensorView& state, const DeltaHeads& heads) override {
    require_on(device(), "delta_rule",
               {&out, &q, &k, &v, &gates.decay, &gates.share, &gates.rate, &gates.shift, &state});
    apply_delta_rule(work(), out, q, k, v, gates, state, heads);
  }

  void gated_activation(const TensorView& y, const TensorView& gate, const TensorView& up,
                        Activation act) override {
    require_on(device(), "gated_activation", {&y, &gate, &up});
    const auto kernel = kernels_.gated[static_cast<int>(act)][static_cast<int>(format_of(y.dtype))];
    by_rows(gate.rows(), gate.cols(), [&](std::int64_t r) {
      kernel(at(y, r), gate.row<const float>(r), up.row<const float>(r), gate.cols());
    });
  }

  void activate(const TensorView& y, const TensorView& x, Activation act) override {
    require_on(device(), "activate", {&y, &x});
    const auto kernel = kernels_.activate[static_cast<int>(act)][static_cast<int>(format_of(y.dtype))];
    by_rows(x.rows(), x.cols(), [&](std::int64_t r) { kernel(at(y, r), x.row<const float>(r), x.cols()); });
  }

  void softcap(const TensorView& x, float cap) override {
    require_on(device(), "softcap", {&x});
    by_rows(x.rows(), x.cols(), [&](std::int64_t r) { kernels_.softcap(x.row<float>(r), cap, x.cols()); });
  }

  void add(const TensorView& into, const TensorView& x, float scale) override {
    require_on(device(), "add", {&into, &x});
    by_rows(x.rows(), x.cols(), [&](std::int64_t r) {
      kernels_.add(into.row<float>(r), x.row<const float>(r), scale, x.cols());
    });
  }

  void add_rows(const TensorView& into, const TensorView& x, std::span<const std::int32_t> rows,
                std::span<const float> scales) override {
    require_on(device(), "add_rows", {&into, &x});
    by_rows(static_cast<std::int64_t>(rows.size()), x.cols(), [&](std::int64_t r) {
      const auto i = static_cast<std::size_t>(r);
      kernels_.add(into.row<float>(rows[i]), x.row<const float>(r), scales[i], x.cols());
    });
  }

  void convert(const TensorView& to, const TensorView& from) override {
    require_on(device(), "convert", {&to, &from});
    by_rows(from.rows(), from.cols(), [&](std::int64_t r) { convert_row(to, from, r); });
  }

  void score_rows(const TensorView& logits, std::span<const std::int32_t> targets,
                  std::span<RowScore> scores) override {
    require_on(device(), "score_rows", {&logits});
    const std::int64_t width = logits.cols(), tiles = (width + kScoreTile - 1) / kScoreTile;
    by_rows(static_cast<std::int64_t>(scores.size()), width, [&](std::int64_t r) {
      thread_local std::vector<TileScore> parts;
      parts.clear();
      const auto i = static_cast<std::size_t>(r);
      const float* const row = logits.row<const float>(r);
      for (std::int64_t t = 0; t < tiles; ++t)
        parts.push_back(score_tile(kernels_, row + t * kScoreTile,
                                   std::min(kScoreTile, width - t * kScoreTile), t * kScoreTile));
      scores[i] = join(parts, row[targets[i]]);
    });
  }

  void score_products(const TensorView& x, const PreparedWeight& w, float softcap,
                      std::span<const std::int32_t> targets, std::span<RowScore> scores) override {
    require_on(device(), "score_products", {&x});
    const CpuWeight& weight = own(w);
    if (weight.kind != PackedWeight::kKind || softcap != 0)
      return Backend::score_products(x, w, softcap, targets, scores);
    score_in_tiles(work(), x, static_cast<const PackedWeight&>(weight), targets, scores);
  }

  // KL = sum_i s_i (p_i - q_i) - (log Z_p - log Z_q), s = softmax(p): both terms are exactly 0 for equal
  // rows.
  void divergence(const TensorView& p, const TensorView& q, std::span<double> kl) override {
    require_on(device(), "divergence", {&p, &q});
    by_rows(static_cast<std::int64_t>(kl.size()), 2 * p.cols(), [&](std::int64_t r) {
      const DivergenceSum sum = kernels_.divergence(p.row<const float>(r), q.row<const float>(r), p.cols());
      kl[static_cast<std::size_t>(r)] = sum.weighted / sum.p.sum - (log_of(sum.p) - log_of(sum.q));
    });
  }

  void gram(const TensorView& g, const TensorView& x, std::int64_t before) override {
    require_on(device(), "gram", {&g, &x});
    require_gram_start(before);
    accumulate_gram(work(), g, x);
  }

  void drain_gram(ExactSums& triangle, const TensorView& g) override {
    require_on(device(), "drain_gram", {&g});
    const std::int64_t k = g.cols();
    by_rows(k, k, [&](std::int64_t i) {
      const std::span<float> row(g.row<float>(i) + i, static_cast<std::size_t>(k - i));
      triangle.add(triangle_place(i, k), row, kernels_.add_exactly);
      std::fill(row.begin(), row.end(), 0.0f);
    });
  }

  void channel_stats(const TensorView& x, std::span<double> absolute_sum,
                     std::span<float> absolute_max) override {
    require_on(device(), "channel_stats", {&x});
    constexpr std::int64_t kChannels = 128;
    const auto kernel = kernels_.channel_stats[static_cast<int>(format_of(x.dtype))];
    by_rows((x.cols() + kChannels - 1) / kChannels, kChannels * x.rows(), [&](std::int64_t item) {
      const std::int64_t first = item * kChannels;
      kernel(absolute_sum.data() + first, absolute_max.data() + first,
             x.as<const unsigned char>() + first * element_bytes(x.dtype), x.row_stride, x.rows(),
             std::min(kChannels, x.cols() - first));
    });
  }

  void quadratic_form(std::span<double> loss, const TensorView& d, const PreparedWeight& g) override {
    require_on(device(), "quadratic_form", {&d});
    const CpuWeight& square = own(g);
    if (square.kind != PackedWeight::kKind)
      fail(ErrorKind::kInternal, "a quadratic form of {} was asked for; numbers make one", square.kernel);
    evaluate_form(work(), loss, d, static_cast<const PackedWeight&>(square));
  }

 private:
  CpuWork work() { return {&kernels_, &pool_, &scratch_, memory_}; }

  void linears_at_once(std::span<const LinearCall> calls) {
    std::array<ProductCall<CpuWeight>, kMostCallsAtOnce> products;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const LinearCall& call = calls[i];
      require_on(device(), "linear", {&call.y, &call.x, &call.bias});
      products.at(i) = {call.y, call.x, &own(*call.weight), call.bias.as<const float>()};
    }
    multiply(work(), std::span<const ProductCall<CpuWeight>>(products).first(calls.size()));
  }

  const CpuWeight& own(const PreparedWeight& weight) const {
    return own_weight<CpuWeight>(weight, *this,
                                 [&](const CpuWeight& mine) { return mine.kernels == &kernels_; });
  }

  static void* at(const TensorView& view, std::int64_t row) {
    return view.as<unsigned char>() + row * view.row_stride * element_bytes(view.dtype);
  }

  static double log_of(const SoftmaxSum& sum) { return static_cast<double>(sum.max) + std::log(sum.sum); }

  template <class Body>
  void by_rows(std::int64_t rows, std::int64_t width, const Body& body) {
    llmq::by_rows(pool_, rows, width, body);
  }

  void convert_row(const TensorView& to, const TensorView& from, std::int64_t r) const {
    if (to.dtype == from.dtype)
      std::memcpy(at(to, r), at(from, r), static_cast<std::size_t>(from.cols() * element_bytes(from.dtype)));
    else if (to.dtype == DType::kBF16)
      kernels_.to_bf16(to.row<BFloat16>(r), from.row<const float>(r), from.cols());
    else
      kernels_.to_f32(to.row<float>(r), from.row<const BFloat16>(r), from.cols());
  }

  const std::string level_;
  const CpuKernels& kernels_;
  ThreadPool pool_;
  WorkerScratch scratch_;
  const std::shared_ptr<MemoryResource> memory_ = recycled_memory(kKeptBytes);
};

struct Level {
  const char* name;
  const CpuKernels* (*kernels)();
  bool listed;  // else for tests
};

constexpr Level kLevels[] = {
    {"scalar", scalar_level, true},
    {"avx2", avx2_level, true},
    {"avx512", avx512_level, true},
    {"amx", amx_level, true},
    {"avx512_plain", avx512_plain_level, false},
    {"amx_emulated", amx_emulated_level, false},
};

std::string CpuBackend::slower_than_possible() const {
  const Level* best = nullptr;
  for (const Level& level : kLevels)
    if (level.listed && level.kernels() != nullptr) best = &level;
  if (best != nullptr && best->kernels() != &kernels_)
    return fmt::format("LLMQ_CPU_ISA chose the CPU level {}, and this processor has {}", level_, best->name);
  if (&kernels_ == scalar_level())
    return "this processor has none of the instruction sets that llmq has kernels for, from AVX2 on: the CPU "
           "level is scalar, which is many times slower";
  return {};
}

}  // namespace

std::vector<std::string> cpu_levels_present() {
  std::vector<std::string> names;
  for (const Level& level : kLevels)
    if (level.listed && level.kernels() != nullptr) names.emplace_back(level.name);
  return names;
}

std::shared_ptr<Backend> make_cpu_backend_at(int threads, const std::string& level) {
  for (const Level& known : kLevels) {
    if (level != known.name) continue;
    const CpuKernels* const kernels = known.kernels();
    if (kernels != nullptr) return std::make_shared<CpuBackend>(threads, kernels->name, *kernels);
    fail(ErrorKind::kUnsupported,
         {fmt::format("this processor does not have the CPU level '{}'", level),
          {},
          "LLMQ_CPU_ISA",
          fmt::format("leave it unset, or use one of {}", fmt::join(cpu_levels_present(), ", "))});
  }
  fail(ErrorKind::kUsage, {fmt::format("'{}' is not a CPU level", level),
                           {},
                           "LLMQ_CPU_ISA",
                           "use scalar, avx2, avx512 or amx, or leave it unset"});
}

std::shared_ptr<Backend> make_cpu_backend_of(int threads, const std::string& arithmetic) {
  for (const Level& level : kLevels)
    if (const CpuKernels* const kernels = level.kernels();
        kernels != nullptr && arithmetic == arithmetic_of(kernels->name))
      return make_cpu_backend_at(threads, level.name);
  fail(ErrorKind::kUnsupported,
       {fmt::format("this machine does not compute as '{}'", arithmetic),
        {},
        {},
        fmt::format("it has the CPU levels {}", fmt::join(cpu_levels_present(), ", "))});
}

std::string chosen_cpu_level() {
  const char* const forced = std::getenv("LLMQ_CPU_ISA");
  return forced != nullptr && *forced != '\0' ? forced : cpu_levels_present().back();
}

std::shared_ptr<Backend> make_cpu_backend(int threads) {
  return make_cpu_backend_at(threads, chosen_cpu_level());
}

}  // namespace llmq
