// An item is one tile of rows, zero-padded where rows are fewer, against one group of columns. Nothing is
// summed across items.
#include "device/cpu/tiled_weight.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace llmq {
namespace {

constexpr std::int64_t kTileRows = WeightTiles::kRows;
constexpr std::int64_t kMostColumns = 768;  // of a group: a tile's outputs stay in L2

std::int64_t ceil_of(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::size_t aligned(std::int64_t bytes) { return static_cast<std::size_t>(ceil_of(bytes, 64) * 64); }

template <class Body>
void parallel(const CpuWork& work, std::int64_t items, const Body& body) {
  const auto call = [&](std::size_t item, int worker) { body(static_cast<std::int64_t>(item), worker); };
  work.pool->parallel_for(static_cast<std::size_t>(items), std::cref(call));
}

struct Columns {
  std::int64_t first, count;
};

Columns columns_of(const TiledWeight& w, std::int64_t group) {
  const std::int64_t first = group * w.group_columns;
  return {first, std::min(w.group_columns, w.out_features - first)};
}

}  // namespace

std::unique_ptr<TiledWeight> tile_weight(const CpuWork& work, const TensorView& weight) {
  auto tiled = std::make_unique<TiledWeight>();
  const std::int64_t n = weight.rows(), k = weight.cols();
  tiled->kernels = work.kernels;
  tiled->out_features = n;
  tiled->in_features = k;
  tiled->compute = Compute::kBFloat16;
  tiled->kernel = "bf16 tiles of oneDNN";
  tiled->group_columns = ceil_of(ceil_of(n, ceil_of(n, kMostColumns)), 64) * 64;
  tiled->groups.resize(static_cast<std::size_t>(ceil_of(n, tiled->group_columns)));
  parallel(work, static_cast<std::int64_t>(tiled->groups.size()), [&](std::int64_t group, int worker) {
    const Columns columns = columns_of(*tiled, group);
    const std::size_t rows_bytes = aligned(columns.count * k * 2);
    unsigned char* const rows =
        work.scratch->take(worker, rows_bytes + static_cast<std::size_t>(k) * sizeof(float));
    for (std::int64_t c = 0; c < columns.count; ++c)
      row_in_format(work, CpuFormat::kBF16, rows + c * k * 2, weight, columns.first + c,
                    reinterpret_cast<float*>(rows + rows_bytes));
    tiled->groups[static_cast<std::size_t>(group)] = make_weight_tiles(rows, columns.count, k);
  });
  for (const auto& group : tiled->groups) tiled->bytes += group->bytes();
  return tiled;
}

void multiply(const CpuWork& work, const TensorView& y, const TensorView& x, const TiledWeight& w,
              const float* bias) {
  const std::int64_t k = w.in_features, tiles = ceil_of(x.rows(), kTileRows);
  parallel(work, tiles * static_cast<std::int64_t>(w.groups.size()), [&](std::int64_t item, int worker) {
    const Columns columns = columns_of(w, item / tiles);
    const WeightTiles& weight = *w.groups[static_cast<std::size_t>(item / tiles)];
    const std::int64_t first = item % tiles * kTileRows, rows = std::min(kTileRows, x.rows() - first);
    const bool whole = rows == kTileRows;
    const std::size_t in_bytes = aligned(kTileRows * k * 2),
                      out_bytes = aligned(kTileRows * columns.count * 4);
    unsigned char* const memory = work.scratch->take(worker, in_bytes + out_bytes + weight.scratch_bytes());
    const void* in = x.row<const BFloat16>(first);
    if (!whole || x.row_stride != k) {
      for (std::int64_t r = 0; r < rows; ++r)
        std::memcpy(memory + r * k * 2, x.row<const BFloat16>(first + r), static_cast<std::size_t>(k) * 2);
      std::memset(memory + rows * k * 2, 0, static_cast<std::size_t>((kTileRows - rows) * k) * 2);
      in = memory;
    }
    const bool in_place = whole && y.row_stride == columns.count;
    float* const out = in_place ? y.row<float>(first) : reinterpret_cast<float*>(memory + in_bytes);
    weight.multiply(in, out, memory + in_bytes + out_bytes);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* const to = y.row<float>(first + r) + columns.first;
      if (!in_place)
        std::memcpy(to, out + r * columns.count, static_cast<std::size_t>(columns.count) * sizeof(float));
      if (bias != nullptr) work.kernels->add(to, bias + columns.first, columns.count);
    }
  });
}

// d G d^T = sum_n d_n (d G)_n, d rounded to BF16 in both places so that the form stays one of G.
void evaluate_form(const CpuWork& work, std::span<double> loss, const TensorView& d, const TiledWeight& g) {
  const std::int64_t all = static_cast<std::int64_t>(loss.size()), k = g.in_features;
  parallel(work, ceil_of(all, kTileRows), [&](std::int64_t item, int worker) {
    const std::int64_t first = item * kTileRows, rows = std::min(kTileRows, all - first);
    std::size_t scratch_bytes = 0;
    for (const auto& group : g.groups) scratch_bytes = std::max(scratch_bytes, group->scratch_bytes());
    const std::size_t in_bytes = aligned(kTileRows * k * 2), wide_bytes = aligned(kTileRows * k * 4),
                      out_bytes = aligned(kTileRows * g.group_columns * 4),
                      zero_bytes = aligned(g.group_columns * 4);
    unsigned char* const memory =
        work.scratch->take(worker, in_bytes + wide_bytes + out_bytes + zero_bytes + scratch_bytes);
    float* const wide = reinterpret_cast<float*>(memory + in_bytes);
    float* const out = reinterpret_cast<float*>(memory + in_bytes + wide_bytes);
    float* const zero = reinterpret_cast<float*>(memory + in_bytes + wide_bytes + out_bytes);
    std::memset(memory, 0, in_bytes);
    std::memset(zero, 0, zero_bytes);
    for (std::int64_t r = 0; r < rows; ++r) {
      BFloat16* const rounded = reinterpret_cast<BFloat16*>(memory) + r * k;
      work.kernels->to_bf16(rounded, d.row<const float>(first + r), k);
      work.kernels->to_f32(wide + r * k, rounded, k);
      loss[static_cast<std::size_t>(first + r)] = 0;
    }
    for (std::size_t group = 0; group < g.groups.size(); ++group) {
      const Columns columns = columns_of(g, static_cast<std::int64_t>(group));
      g.groups[group]->multiply(memory, out, memory + in_bytes + wide_bytes + out_bytes + zero_bytes);
      for (std::int64_t r = 0; r < rows; ++r)
        loss[static_cast<std::size_t>(first + r)] += work.kernels->half_form(
            wide + r * k + columns.first, zero, out + r * columns.count, columns.count);
    }
  });
}

}  // namespace llmq
