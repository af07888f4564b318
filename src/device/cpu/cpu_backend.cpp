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
#include <functional>

#include <fmt/format.h>

#include "base/error.h"
#include "base/threads.h"
#include "device/cpu/code_weight.h"
#include "device/cpu/narrow_weight.h"
#include "device/cpu/packed_weight.h"
#include "device/cpu/recycled_memory.h"
#include "device/cpu/score_tiles.h"
#include "device/on_device.h"
#include "kernels/cpu/kv_layout.h"
#include "kernels/cpu/level.h"

namespace llmq {
namespace {

constexpr std::int64_t kItemElements = 1 << 14;            // smaller operations are not worth waking a worker
constexpr std::size_t kKeptBytes = std::size_t{48} << 20;  // of freed buffers: a block's intermediates
constexpr std::int64_t kLeastTileRows = 192,
                       kMostTileRows = 768;  // (position, head) pairs of one attention item

CpuFormat format_of(DType dtype) { return dtype == DType::kF32 ? CpuFormat::kF32 : CpuFormat::kBF16; }

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
    for (const LinearCall& call : calls) require_on(device(), "linear", {&call.y, &call.x, &call.bias});
    if (const auto dense = calls_with<PackedWeight>(calls); dense.count > 0)
      return multiply(work(), dense.all());
    if (const auto codes = calls_with<CodeWeight>(calls); codes.count > 0)
      return multiply(work(), codes.all());
    const auto narrow = calls_with<NarrowWeight>(calls);
    if (narrow.count > 0 && std::all_of(narrow.all().begin(), narrow.all().end(), has_few_rows))
      return multiply_few(work(), narrow.all());
    if (calls.size() > 1) return Backend::linears(calls);
    for (const LinearCall& call : calls)
      if (narrow.count > 0)
        multiply(work(), call.y, call.x, *narrow.of[0].w, narrow.of[0].bias);
      else
        own(*call.weight);  // says that it is another backend's
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
      kernel(at(y, r), x.row<const float>(r), gain.as<const float>(), bias.as<const float>(), eps, x.cols());
    });
  }

  void rope(const TensorView& x, std::span<const std::int32_t> positions, const TensorView& cosines,
            const TensorView& sines) override {
    require_on(device(), "rope", {&x, &cosines, &sines});
    const std::int64_t heads = x.shape[1];
    by_rows(static_cast<std::int64_t>(positions.size()), heads * x.cols(), [&](std::int64_t t) {
      const std::int64_t position = positions[static_cast<std::size_t>(t)];
      for (std::int64_t h = 0; h < heads; ++h)
        kernels_.rope(x.row<float>(t * heads + h), cosines.row<const float>(position),
                      sines.row<const float>(position), x.cols() / 2);
    });
  }

  void store_kv(const KvPages& pages, const TensorView& k, const TensorView& v,
                std::span<const std::int64_t> slots) override {
    require_on(device(), "store_kv", {&pages.keys, &pages.values, &k, &v});
    if (pages.packed)
      return each_packed_row(pages, k, slots,
                             [&](KvRow keys, KvRow values, std::int64_t row, std::int64_t place) {
                               kv_store_row(keys, pages.keys.as<unsigned char>() + place * keys.bytes(),
                                            k.row<const float>(row), pages.key_scale);
                               kv_store_row(values, pages.values.as<unsigned char>() + place * values.bytes(),
                                            v.row<const float>(row), pages.value_scale);
                             });
    each_kv_head(pages, k, slots, [&](auto element, const KvSlot& at, std::int64_t row) {
      store_head<decltype(element)>(pages, at, k.row<const float>(row), v.row<const float>(row));
    });
  }

  void load_kv(const TensorView& k, const TensorView& v, const KvPages& pages,
               std::span<const std::int64_t> slots) override {
    require_on(device(), "load_kv", {&pages.keys, &pages.values, &k, &v});
    if (pages.packed)
      return each_packed_row(
          pages, k, slots, [&](KvRow keys, KvRow values, std::int64_t row, std::int64_t place) {
            kv_load_row(keys, k.row<float>(row), pages.keys.as<const unsigned char>() + place * keys.bytes(),
                        pages.key_scale);
            kv_load_row(values, v.row<float>(row),
                        pages.values.as<const unsigned char>() + place * values.bytes(), pages.value_scale);
          });
    each_kv_head(pages, k, slots, [&](auto element, const KvSlot& at, std::int64_t row) {
      using Element = decltype(element);
      for (std::int64_t d = 0; d < at.layout.head_dim; ++d) {
        k.row<float>(row)[d] =
            number(pages.keys.as<const Element>()[at.layout.key(at.block, at.head, at.place, d)]);
        v.row<float>(row)[d] =
            number(pages.values.as<const Element>()[at.layout.value(at.block, at.head, at.place, d)]);
      }
    });
  }

  void attention(const TensorView& out, const TensorView& q, const KvPages& pages,
                 std::span<const SequenceRows> sequences, const AttentionProblem& problem) override {
    require_on(device(), "attention", {&out, &q, &pages.keys, &pages.values});
    const std::int64_t group = problem.heads / problem.kv_heads;
    std::int64_t all = 0;
    for (const SequenceRows& s : sequences) all += s.rows;
    // Large tiles, whose packed keys serve many rows, as long as every worker has a few of them.
    const std::int64_t positions = std::clamp<std::int64_t>(all * problem.kv_heads / (4 * pool_.size()),
                                                            std::max<std::int64_t>(1, kLeastTileRows / group),
                                                            std::max<std::int64_t>(1, kMostTileRows / group));
    // Item -> (sequence, tile, KV head), the latest positions of a sequence (the most keys) first.
    std::int64_t items = 0;
    for (const SequenceRows& s : sequences) items += (s.rows + positions - 1) / positions * problem.kv_heads;
    const auto run = [&](std::size_t index, int worker) {
      std::int64_t left = static_cast<std::int64_t>(index);
      for (const SequenceRows& s : sequences) {
        const std::int64_t tiles = (s.rows + positions - 1) / positions;
        if (left < tiles * problem.kv_heads) {
          attend(out, q, pages, s, problem, (tiles - 1 - left / problem.kv_heads) * positions,
                 static_cast<int>(left % problem.kv_heads), static_cast<int>(positions), worker);
          return;
        }
        left -= tiles * problem.kv_heads;
      }
    };
    pool_.parallel_for(static_cast<std::size_t>(items), std::cref(run));
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

  void add(const TensorView& into, const TensorView& x) override {
    require_on(device(), "add", {&into, &x});
    by_rows(x.rows(), x.cols(),
            [&](std::int64_t r) { kernels_.add(into.row<float>(r), x.row<const float>(r), x.cols()); });
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

  void score_products(const TensorView& x, const PreparedWeight& w, std::span<const std::int32_t> targets,
                      std::span<RowScore> scores) override {
    require_on(device(), "score_products", {&x});
    const auto* packed = dynamic_cast<const PackedWeight*>(&w);
    if (packed == nullptr || packed->kernels != &kernels_)
      return Backend::score_products(x, w, targets, scores);
    score_in_tiles(work(), x, *packed, targets, scores);
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

  void drain_gram(std::span<double> triangle, const TensorView& g) override {
    require_on(device(), "drain_gram", {&g});
    const std::int64_t k = g.cols();
    by_rows(k, k, [&](std::int64_t i) {
      float* const row = g.row<float>(i);
      double* const sums = triangle.data() + i * (k - 1) - i * (i - 1) / 2;  // sums[j]: j from i on
      for (std::int64_t j = i; j < k; ++j) sums[j] += static_cast<double>(row[j]);
      std::fill(row, row + k, 0.0f);
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
    evaluate_form(work(), loss, d, own(g));
  }

 private:
  template <class Weight>
  struct Calls {
    std::array<ProductCall<Weight>, kMostCallsAtOnce> of;
    std::size_t count = 0;
    std::span<const ProductCall<Weight>> all() const { return std::span(of).first(count); }
  };

  // All the calls, where they are few enough and their weights all of this kind; else none.
  template <class Weight>
  Calls<Weight> calls_with(std::span<const LinearCall> calls) const {
    Calls<Weight> found;
    if (calls.size() > found.of.size()) return found;
    for (const LinearCall& call : calls) {
      const auto* weight = dynamic_cast<const Weight*>(call.weight);
      if (weight == nullptr || weight->kernels != &kernels_) return {};
      found.of[found.count++] = {call.y, call.x, weight, call.bias.template as<const float>()};
    }
    return found;
  }

  CpuWork work() { return {&kernels_, &pool_, &scratch_, memory_}; }

  const PackedWeight& own(const PreparedWeight& weight) const {
    const auto* packed = dynamic_cast<const PackedWeight*>(&weight);
    if (packed == nullptr || packed->kernels != &kernels_)
      fail(ErrorKind::kInternal, "a weight prepared by another backend reached {}", name());
    return *packed;
  }

  static void* at(const TensorView& view, std::int64_t row) {
    return view.as<unsigned char>() + row * view.row_stride * element_bytes(view.dtype);
  }

  static double log_of(const SoftmaxSum& sum) { return static_cast<double>(sum.max) + std::log(sum.sum); }

  // body(row) over rows of `width` elements of work each, several rows to an item.
  template <class Body>
  void by_rows(std::int64_t rows, std::int64_t width, const Body& body) {
    const std::int64_t chunk = std::max<std::int64_t>(1, kItemElements / std::max<std::int64_t>(1, width));
    const auto run = [&](std::size_t item, int) {
      const std::int64_t first = static_cast<std::int64_t>(item) * chunk;
      for (std::int64_t r = first; r < std::min(rows, first + chunk); ++r) body(r);
    };
    pool_.parallel_for(static_cast<std::size_t>((rows + chunk - 1) / chunk), std::cref(run));
  }

  void convert_row(const TensorView& to, const TensorView& from, std::int64_t r) const {
    if (to.dtype == from.dtype)
      std::memcpy(at(to, r), at(from, r), static_cast<std::size_t>(from.cols() * element_bytes(from.dtype)));
    else if (to.dtype == DType::kBF16)
      kernels_.to_bf16(to.row<BFloat16>(r), from.row<const float>(r), from.cols());
    else
      kernels_.to_f32(to.row<float>(r), from.row<const BFloat16>(r), from.cols());
  }

  // One head of one position.
  struct KvSlot {
    KvLayout layout;
    std::int64_t block, head, place;
  };

  // use(an element of the pages, KvSlot, the row of [T * heads, head_dim]) for each head of each slot.
  template <class Use>
  void each_kv_head(const KvPages& pages, const TensorView& k, std::span<const std::int64_t> slots,
                    const Use& use) {
    const std::int64_t heads = k.shape[1];
    const bool narrow = pages.keys.dtype == DType::kBF16;
    KvSlot at{{pages.block_size, heads, k.cols(), narrow ? 2 : 1}, 0, 0, 0};
    by_rows(static_cast<std::int64_t>(slots.size()), 2 * heads * k.cols(), [&, at](std::int64_t t) {
      KvSlot mine = at;
      mine.block = slots[static_cast<std::size_t>(t)] / pages.block_size;
      mine.place = slots[static_cast<std::size_t>(t)] % pages.block_size;
      for (mine.head = 0; mine.head < heads; ++mine.head)
        if (narrow)
          use(BFloat16{}, mine, t * heads + mine.head);
        else
          use(float{}, mine, t * heads + mine.head);
    });
  }

  // use(KvRow of keys, of values, the row of [T * heads, head_dim], its place among the pages' rows) for each
  // head of each slot.
  template <class Use>
  void each_packed_row(const KvPages& pages, const TensorView& k, std::span<const std::int64_t> slots,
                       const Use& use) {
    const std::int64_t heads = k.shape[1], size = pages.block_size;
    const KvRow keys{pages.packed->keys, k.cols()}, values{pages.packed->values, k.cols()};
    by_rows(static_cast<std::int64_t>(slots.size()), 2 * heads * k.cols(), [&](std::int64_t t) {
      const std::int64_t slot = slots[static_cast<std::size_t>(t)];
      for (std::int64_t h = 0; h < heads; ++h)
        use(keys, values, t * heads + h, (slot / size * heads + h) * size + slot % size);
    });
  }

  static float number(float v) { return v; }
  static float number(BFloat16 v) { return to_float(v); }
  static void place_element(float* to, float from) { *to = from; }
  static void place_element(BFloat16* to, float from) { *to = to_bfloat16(from); }

  template <class Element>
  static void store_head(const KvPages& pages, const KvSlot& at, const float* key, const float* value) {
    constexpr std::int64_t kPerUnit = 4 / sizeof(Element);
    const KvLayout& layout = at.layout;
    const std::int64_t dim = layout.head_dim, stride = layout.width(at.place) * kPerUnit;
    Element* const keys = pages.keys.as<Element>();
    Element* to = keys + layout.key(at.block, at.head, at.place, 0);
    for (std::int64_t d = 0; d + kPerUnit <= dim; d += kPerUnit, to += stride)
      for (std::int64_t i = 0; i < kPerUnit; ++i) place_element(to + i, key[d + i]);
    if (dim % kPerUnit != 0)
      place_element(keys + layout.key(at.block, at.head, at.place, dim - 1), key[dim - 1]);
    const std::int64_t first = layout.value(at.block, at.head, at.place, 0),
                       step = layout.value(at.block, at.head, at.place, 1) - first;
    to = pages.values.as<Element>() + first;
    for (std::int64_t d = 0; d < dim; ++d, to += step) place_element(to, value[d]);
  }

  void attend(const TensorView& out, const TensorView& q, const KvPages& pages, const SequenceRows& s,
              const AttentionProblem& problem, std::int64_t first, int kv_head, int positions, int worker) {
    const int group = problem.heads / problem.kv_heads;
    const std::int64_t row = s.first_row + first,
                       width = static_cast<std::int64_t>(problem.heads) * problem.head_dim;
    const std::int64_t offset = static_cast<std::int64_t>(kv_head) * group * problem.head_dim;
    const std::int64_t out_row = out.shape.rank() == 2 ? out.row_stride : width;
    AttentionTile tile;
    tile.q = q.as<const float>() + row * width + offset;
    tile.q_row = width;
    tile.out = out.as<unsigned char>() + (row * out_row + offset) * element_bytes(out.dtype);
    tile.out_row = out_row;
    tile.positions = static_cast<int>(std::min<std::int64_t>(positions, s.rows - first));
    tile.group = group;
    tile.head_dim = problem.head_dim;
    tile.scale = problem.scale;
    tile.first_position = s.context + first;
    tile.window = problem.sliding_window;
    tile.keys = pages.keys.pointer;
    tile.values = pages.values.pointer;
    tile.pages = format_of(pages.keys.dtype);
    tile.packed = pages.packed.has_value();
    if (pages.packed)
      tile.key_row = {pages.packed->keys, problem.head_dim},
      tile.value_row = {pages.packed->values, problem.head_dim};
    tile.key_scale = pages.key_scale;
    tile.value_scale = pages.value_scale;
    tile.block_size = pages.block_size;
    tile.kv_heads = problem.kv_heads;
    tile.kv_head = kv_head;
    tile.block_table = s.block_table.data();
    tile.scratch = scratch_.take(worker, kernels_.attention_scratch(tile.positions, group, problem.head_dim));
    kernels_.attention[static_cast<int>(llmq::format_of(problem.compute))](tile);
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
         ErrorDetail{fmt::format("this processor does not have the CPU level '{}'", level),
                     {},
                     "LLMQ_CPU_ISA",
                     fmt::format("leave it unset, or use one of {}", fmt::join(cpu_levels_present(), ", "))});
  }
  fail(ErrorKind::kUsage, ErrorDetail{fmt::format("'{}' is not a CPU level", level),
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
       ErrorDetail{fmt::format("this machine does not compute as '{}'", arithmetic),
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
