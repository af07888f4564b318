// Partition of products over (rows x panels), of the Gram matrix over its panels, of quadratic forms over
// rows.
//
// An item is kBlockRows rows against kGroupColumns columns: the rows' block (at most kBlockDepth deep) and
// one panel stay in L2, each panel is read once per block of rows, and items that follow one another share
// the columns, so that the workers share them in L3. Blocks along the depth store and reload the FP32
// partial, which rounds nothing; hence no choice made here shows in a result.
#include "device/cpu/packed_weight.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "device/backend_scratch.h"
#include "device/cpu/score_tiles.h"
#include "device/gram_rows.h"

namespace llmq {
namespace {

constexpr std::int64_t kBlockDepth = 2048;

// One block of rows against one group of panels, to be stored at c (its first row and column).
struct LinearItem {
  const CpuWork& work;
  const TensorView& x;
  const PackedWeight& w;
  const float* bias;
  std::int64_t group_panels;

  void run(std::int64_t first_row, std::int64_t first_panel, float* c, std::int64_t c_row, int worker) const {
    const std::int64_t element = format_bytes(w.format), panel = work.kernels->panel;
    const std::int64_t rows = std::min(kBlockRows, x.rows() - first_row);
    const std::int64_t panels = std::min(group_panels, ceil_of(w.out_features, panel) - first_panel);
    for (std::int64_t k = 0; k < w.in_features; k += kBlockDepth) {
      GemmPanel g;
      g.rows = rows;
      g.depth = std::min(kBlockDepth, w.in_features - k);
      g.accumulate = k > 0;
      g.a = x.as<const unsigned char>() + (first_row * x.row_stride + k) * element;
      g.a_row = x.row_stride * element;
      g.c_row = c_row;
      if (g.a_row % kSetStride == 0 && rows > 1) spread_rows(g, worker);
      g.b = w.panel(first_panel) + k / (4 / element) * panel * 4;
      g.b_panel = w.panel_bytes;
      g.c = c;
      g.columns = std::min(panels * panel, w.out_features - first_panel * panel);
      g.start = bias == nullptr ? nullptr : bias + first_panel * panel;
      work.kernels->gemm[static_cast<int>(w.format)](g);
    }
  }

  // A copy whose rows lie an odd number of cache lines apart.
  void spread_rows(GemmPanel& g, int worker) const {
    const std::int64_t bytes = g.depth * format_bytes(w.format), stride = ceil_of(bytes, 128) * 128 + 64;
    unsigned char* const copy = work.scratch->take(worker, static_cast<std::size_t>(g.rows * stride));
    for (std::int64_t r = 0; r < g.rows; ++r)
      std::memcpy(copy + r * stride, static_cast<const unsigned char*>(g.a) + r * g.a_row,
                  static_cast<std::size_t>(bytes));
    g.a = copy;
    g.a_row = stride;
  }
};

// One square tile on the diagonal goes through memory of its own: below the diagonal G is not ours to write.
void gram_panel(const CpuWork& work, const TensorView& g, const unsigned char* panels,
                std::int64_t panel_bytes, std::int64_t depth, CpuFormat format, std::int64_t j) {
  const std::int64_t panel = work.kernels->panel, first = j * panel,
                     columns = std::min(panel, g.cols() - first);
  GemmPanel p;
  p.transposed = true;
  p.a_row = panel * 4;
  p.b = panels + j * panel_bytes;
  p.depth = depth;
  p.columns = columns;
  p.accumulate = true;
  p.c_row = g.row_stride;
  p.rows = panel;
  for (std::int64_t i = 0; i < j; ++i) {
    p.a = panels + i * panel_bytes;
    p.c = g.row<float>(i * panel) + first;
    work.kernels->gemm[static_cast<int>(format)](p);
  }
  float tile[64 * 64];
  p.a = p.b;
  p.rows = columns;
  p.c = tile;
  p.c_row = panel;
  for (std::int64_t r = 0; r < columns; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      tile[r * panel + c] = c < r ? 0.0f : g.row<float>(first + r)[first + c];
  work.kernels->gemm[static_cast<int>(format)](p);
  for (std::int64_t r = 0; r < columns; ++r)
    for (std::int64_t c = r; c < columns; ++c) g.row<float>(first + r)[first + c] = tile[r * panel + c];
}

}  // namespace

std::uint64_t quadratic_form_bytes(std::uint64_t channels, std::uint64_t element) {
  return std::uint64_t{kBlockRows} * channels * (element + 4);
}

void row_in_format(const CpuWork& work, CpuFormat format, void* to, const TensorView& from, std::int64_t row,
                   float* wide) {
  const std::int64_t n = from.cols();
  if (from.dtype == DType::kBF16 && format == CpuFormat::kBF16) {
    std::memcpy(to, from.row<const BFloat16>(row), static_cast<std::size_t>(n) * 2);
    return;
  }
  float* const f32 = format == CpuFormat::kF32 ? static_cast<float*>(to) : wide;
  if (from.dtype == DType::kF32)
    std::memcpy(f32, from.row<const float>(row), static_cast<std::size_t>(n) * 4);
  else if (from.dtype == DType::kBF16)
    work.kernels->to_f32(f32, from.row<const BFloat16>(row), n);
  else
    work.kernels->half_to_f32(f32, from.row<const Float16>(row), n);
  if (format == CpuFormat::kBF16) work.kernels->to_bf16(static_cast<BFloat16*>(to), f32, n);
}

std::unique_ptr<PackedWeight> pack_weight(const CpuWork& work, const TensorView& weight, Compute compute) {
  auto packed = std::make_unique<PackedWeight>(work);
  const std::int64_t panel = work.kernels->panel, n = weight.rows(), k = weight.cols();
  packed->out_features = n;
  packed->in_features = k;
  packed->compute = compute;
  packed->format = format_of(compute);
  packed->kernel = compute == Compute::kFloat32 ? "f32 panels" : "bf16 panels";
  const std::int64_t element = format_bytes(packed->format), units = ceil_of(k * element, 4),
                     panels = ceil_of(n, panel);
  packed->panel_bytes = units * panel * 4;
  packed->bytes = static_cast<std::size_t>(packed->panel_bytes * panels);
  packed->panels = Buffer(host_memory(), packed->bytes);
  const std::int64_t row_bytes = ceil_of(k * element, 64) * 64;
  each_item(work, panels, [&](std::int64_t p, int worker) {
    unsigned char* const rows =
        work.scratch->take(worker, static_cast<std::size_t>(panel * row_bytes + k * 4));
    const std::int64_t columns = std::min(panel, n - p * panel);
    for (std::int64_t c = 0; c < columns; ++c)
      row_in_format(work, packed->format, rows + c * row_bytes, weight, p * panel + c,
                    reinterpret_cast<float*>(rows + panel * row_bytes));
    work.kernels->pack[static_cast<int>(packed->format)](
        packed->panels.as<unsigned char>() + p * packed->panel_bytes, rows, row_bytes / element, columns, k);
  });
  return packed;
}

void multiply(const CpuWork& work, std::span<const ProductCall<PackedWeight>> calls) {
  const std::int64_t panel = work.kernels->panel;
  const ProductItems items(calls, panel, kBlockRows, kGroupColumns, *work.pool);
  items.each_product(
      [&](std::size_t call, std::int64_t row, std::int64_t first, std::int64_t panels, int worker) {
        const ProductCall<PackedWeight>& c = calls[call];
        const LinearItem item{work, c.x, *c.w, c.bias, panels};
        item.run(row, first, c.y.row<float>(row) + first * panel, c.y.row_stride, worker);
      });
}

// Item: a block of rows against a tile of columns, whose logits stay in the worker's L2; the tiles' sums of a
// row lie together.
void score_in_tiles(const CpuWork& work, const TensorView& x, const PackedWeight& w,
                    std::span<const std::int32_t> targets, std::span<RowScore> scores) {
  const std::int64_t panel = work.kernels->panel, tiles = ceil_of(w.out_features, kScoreTile),
                     blocks = ceil_of(x.rows(), kBlockRows);
  const auto rows = static_cast<std::size_t>(x.rows());
  const Buffer logits(work.memory,
                      static_cast<std::size_t>(work.pool->size() * kBlockRows * kScoreTile) * sizeof(float));
  const Buffer sums(work.memory, rows * static_cast<std::size_t>(tiles) * sizeof(TileScore)),
      chosen(work.memory, rows * sizeof(float));
  TileScore* const parts = sums.as<TileScore>();
  float* const target_logits = chosen.as<float>();
  const LinearItem item{work, x, w, nullptr, kScoreTile / panel};
  each_item(work, blocks * tiles, [&](std::int64_t index, int worker) {
    const std::int64_t row = index % blocks * kBlockRows, tile = index / blocks, first = tile * kScoreTile;
    const std::int64_t width = std::min(kScoreTile, w.out_features - first);
    float* const at = logits.as<float>() + worker * kBlockRows * kScoreTile;
    item.run(row, first / panel, at, kScoreTile, worker);
    for (std::int64_t r = row; r < std::min(row + kBlockRows, x.rows()); ++r) {
      const float* const own = at + (r - row) * kScoreTile;
      parts[r * tiles + tile] = score_tile(*work.kernels, own, width, first);
      const std::int64_t target = targets[static_cast<std::size_t>(r)] - first;
      if (target >= 0 && target < width) target_logits[r] = own[target];
    }
  });
  for (std::int64_t r = 0; r < x.rows(); ++r)
    scores[static_cast<std::size_t>(r)] =
        join(std::span(parts + r * tiles, static_cast<std::size_t>(tiles)), target_logits[r]);
}

void accumulate_gram(const CpuWork& work, const TensorView& g, const TensorView& x) {
  const CpuFormat format = x.dtype == DType::kF32 ? CpuFormat::kF32 : CpuFormat::kBF16;
  const std::int64_t element = format_bytes(format), panel = work.kernels->panel,
                     panels = ceil_of(x.cols(), panel);
  const std::int64_t at_once = gram_rows_at_once(panels * panel * element);
  const std::int64_t panel_bytes = at_once * panel * element;
  const Buffer packed(work.memory, static_cast<std::size_t>(panels * panel_bytes));
  for (std::int64_t t = 0; t < x.rows(); t += at_once) {
    const std::int64_t tokens = std::min(at_once, x.rows() - t), even = (tokens + 1) / 2 * 2;
    each_item(work, panels, [&](std::int64_t p, int) {
      work.kernels->pack_straight[static_cast<int>(format)](
          packed.as<unsigned char>() + p * panel_bytes,
          x.as<const unsigned char>() + (t * x.row_stride + p * panel) * element, x.row_stride,
          std::min(panel, x.cols() - p * panel), tokens);
    });
    // The widest columns first, so that the workers end together.
    each_item(work, panels, [&](std::int64_t p, int) {
      gram_panel(work, g, packed.as<unsigned char>(), panel_bytes, format == CpuFormat::kF32 ? tokens : even,
                 format, panels - 1 - p);
    });
  }
}

// d G d^T = sum over panels n of d_n (2 e_n + g_n), where e_n sums d_k G_kn over the rows k above the panel's
// diagonal block and g_n over the block itself: half the products of d G.
void evaluate_form(const CpuWork& work, std::span<double> loss, const TensorView& d, const PackedWeight& g) {
  const std::int64_t rows = static_cast<std::int64_t>(loss.size()), panel = work.kernels->panel,
                     k = g.in_features;
  const std::int64_t element = format_bytes(g.format), stride = ceil_of(k, 64) * 64 + 32;
  const auto gemm = work.kernels->gemm[static_cast<int>(g.format)];
  each_item(work, ceil_of(rows, kBlockRows), [&](std::int64_t item, int worker) {
    const std::int64_t first = item * kBlockRows, count = std::min(kBlockRows, rows - first);
    const std::int64_t rounded_bytes = kBlockRows * stride * element;
    const std::int64_t wide_bytes = g.format == CpuFormat::kF32 ? 0 : kBlockRows * stride * 4;
    unsigned char* const memory = work.scratch->take(
        worker, static_cast<std::size_t>(rounded_bytes + wide_bytes + 2 * kBlockRows * panel * 4));
    float* const wide =
        reinterpret_cast<float*>(g.format == CpuFormat::kF32 ? memory : memory + rounded_bytes);
    float* const above = reinterpret_cast<float*>(memory + rounded_bytes + wide_bytes);
    float* const block = above + kBlockRows * panel;
    for (std::int64_t r = 0; r < count; ++r) {
      float* const row = wide + r * stride;
      std::memcpy(row, d.row<const float>(first + r), static_cast<std::size_t>(k) * 4);
      if (g.format == CpuFormat::kBF16) {  // both factors are the rounded d, so that the form stays one of G
        BFloat16* const rounded = reinterpret_cast<BFloat16*>(memory) + r * stride;
        work.kernels->to_bf16(rounded, row, k);
        work.kernels->to_f32(row, rounded, k);
      }
      loss[static_cast<std::size_t>(first + r)] = 0;
    }
    for (std::int64_t p = 0; p * panel < g.out_features; ++p) {
      const std::int64_t n = p * panel;
      GemmPanel part;
      part.a = memory;
      part.a_row = stride * element;
      part.b = g.panel(p);
      part.c = above;
      part.c_row = panel;
      part.rows = count;
      part.depth = n;
      part.columns = std::min(panel, g.out_features - n);
      gemm(part);
      part.a = memory + n * element;
      part.b = g.panel(p) + n * element * panel;
      part.c = block;
      part.depth = part.columns;
      gemm(part);
      for (std::int64_t r = 0; r < count; ++r)
        loss[static_cast<std::size_t>(first + r)] += work.kernels->half_form(
            wide + r * stride + n, above + r * panel, block + r * panel, part.columns);
    }
  });
}

}  // namespace llmq
