// Few BF16 rows meet the codes directly. Many rows, and all FP32 rows, meet panels that a worker unpacks into
// its own scratch for as many rows as stay in L2 beside them. Either way an element's sum is the same chain,
// so neither the number of rows nor the partition shows in a result.
#include "device/cpu/narrow_weight.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "base/error.h"
#include "device/cpu/narrow_panel.h"
#include "device/cpu/weight_memory.h"

namespace llmq {
namespace {

constexpr std::int64_t kChunkBytes = 128 << 10;  // of an unpacked panel: a quarter of a small L2
constexpr std::int64_t kRowBytes = 384 << 10;    // of the rows that meet it
constexpr std::int64_t kLeastRows = 96, kMostRows = 480, kTileRows = 48;

// Rows [first, first + rows) against panels [panel, panel + panels), each unpacked once.
struct UnpackedItem {
  const CpuWork& work;
  const TensorView& y;
  const TensorView& x;
  const NarrowWeight& w;
  const float* bias;
  const float* sums;          // of the rows' groups, for a weight that adds minima
  std::int64_t chunk_groups;  // of a panel that are unpacked at once

  std::int64_t element() const { return format_bytes(format_of(w.compute)); }
  std::int64_t unit_bytes() const { return w.layout.group * element() * work.kernels->panel; }  // of a group
  std::int64_t spread_stride() const { return ceil_of(w.in_features * element(), 128) * 128 + 64; }
  bool crowded(std::int64_t rows) const { return x.row_stride * element() % kSetStride == 0 && rows > 1; }

  void run(std::int64_t first_row, std::int64_t rows, std::int64_t first_panel, std::int64_t panels,
           int worker) const {
    const std::int64_t panel = work.kernels->panel, unpacked_bytes = chunk_groups * unit_bytes(),
                       numbers = chunk_groups * panel, scale_bytes = numbers * (w.layout.minima ? 8 : 4);
    const std::int64_t copy_bytes = crowded(rows) ? rows * spread_stride() : 0;
    unsigned char* const memory =
        work.scratch->take(worker, static_cast<std::size_t>(unpacked_bytes + scale_bytes + copy_bytes));
    Tile tile;
    tile.unpacked = memory;
    tile.scales = reinterpret_cast<float*>(memory + unpacked_bytes);
    tile.offsets = w.layout.minima ? tile.scales + numbers : nullptr;
    tile.a = x.as<const unsigned char>() + first_row * x.row_stride * element();
    tile.a_row = x.row_stride * element();
    if (copy_bytes > 0) {
      unsigned char* const copy = memory + unpacked_bytes + scale_bytes;
      for (std::int64_t r = 0; r < rows; ++r)
        std::memcpy(copy + r * spread_stride(), tile.a + r * tile.a_row,
                    static_cast<std::size_t>(w.in_features * element()));
      tile.a = copy;
      tile.a_row = spread_stride();
    }
    for (tile.panel = first_panel; tile.panel < first_panel + panels; ++tile.panel)
      for (tile.group = 0; tile.group < w.layout.groups; tile.group += chunk_groups) {
        tile.groups = std::min(chunk_groups, w.layout.groups - tile.group);
        for (std::int64_t i = 0; i < tile.groups; ++i)
          work.kernels->narrow_unpack[static_cast<int>(format_of(w.compute))](
              memory + i * unit_bytes(), tile.scales + i * panel,
              tile.offsets == nullptr ? nullptr : tile.offsets + i * panel,
              narrow_group(w.layout, w.panel(tile.panel), panel, tile.group + i), 0, w.layout.group);
        multiply(tile, first_row, rows);
      }
  }

  // What one chunk of one panel meets its rows with.
  struct Tile {
    const unsigned char *unpacked = nullptr, *a = nullptr;
    float *scales = nullptr, *offsets = nullptr;
    std::int64_t a_row = 0, panel = 0, group = 0, groups = 0;
  };

  // BF16: group after group, each sum scaled. FP32: the values have their scales, and one chain runs through
  // all.
  void multiply(const Tile& tile, std::int64_t first_row, std::int64_t rows) const {
    const std::int64_t panel = work.kernels->panel;
    GemmPanel g;
    g.a = tile.a + tile.group * w.group * element();
    g.a_row = tile.a_row;
    g.b = tile.unpacked;
    g.b_panel = unit_bytes();
    g.c = y.row<float>(first_row) + tile.panel * panel;
    g.c_row = y.row_stride;
    g.rows = rows;
    g.depth = tile.groups * w.group;
    g.columns = std::min(panel, w.out_features - tile.panel * panel);
    g.start = bias == nullptr ? nullptr : bias + tile.panel * panel;
    g.accumulate = tile.group > 0;
    if (w.compute == Compute::kBFloat16) g.scale = tile.scales;
    if (w.needs_sums()) {
      g.offset = tile.offsets;
      g.row_sums = sums + first_row * w.layout.groups + tile.group;
      g.row_sums_row = w.layout.groups;
    }
    work.kernels->gemm_groups[static_cast<int>(format_of(w.compute))](g, w.group);
  }
};

// Rows whose groups are padded with zeros as the codes are.
const unsigned char* padded_rows(const TensorView& x, const NarrowWeight& w, Buffer& memory,
                                 const CpuWork& work, std::int64_t& row_bytes) {
  row_bytes = x.row_stride * 2;
  if (w.layout.group == w.group) return x.as<const unsigned char>();
  row_bytes = w.layout.groups * w.layout.group * 2;
  memory = Buffer(work.memory, static_cast<std::size_t>(x.rows() * row_bytes));
  std::memset(memory.get(), 0, memory.bytes());
  for (std::int64_t m = 0; m < x.rows(); ++m)
    for (std::int64_t g = 0; g < w.layout.groups; ++g)
      std::memcpy(memory.as<unsigned char>() + m * row_bytes + g * w.layout.group * 2,
                  x.row<const BFloat16>(m) + g * w.group, static_cast<std::size_t>(w.group) * 2);
  return memory.as<const unsigned char>();
}

// The sums of the groups of rows [first, first + rows), [rows, groups].
void sum_groups(const TensorView& x, const NarrowWeight& w, std::int64_t first, std::int64_t rows,
                float* sums) {
  for (std::int64_t r = first; r < first + rows; ++r)
    w.kernels->group_sums(sums + r * w.layout.groups, x.row<const BFloat16>(r), w.layout.groups, w.group);
}

Buffer room_for_sums(const CpuWork& work, std::int64_t rows, const NarrowWeight& w) {
  if (!w.needs_sums()) return {};
  return Buffer(work.memory, static_cast<std::size_t>(rows * w.layout.groups) * sizeof(float));
}

}  // namespace

bool can_stay_narrow(const QuantizedMatrix& matrix) {
  const QuantScheme& scheme = matrix.scheme;
  const bool by_table = matrix.code_values.has_value() || scheme.weight_type == WeightType::kFloat4;
  return scheme.weight_type != WeightType::kFloat8 && scheme.activation_scale == ActivationScale::kNone &&
         scheme.granularity != Granularity::kBlock && matrix.column_group.empty() &&
         matrix.kept_columns.empty() && matrix.in_features > 0 && matrix.in_features % matrix.group() == 0 &&
         ((matrix.minima.empty() && !by_table) || matrix.group() % kNarrowBlock == 0);
}

std::unique_ptr<NarrowWeight> narrow_weight(const CpuWork& work, const QuantizedMatrix& matrix,
                                            Compute compute) {
  if (!can_stay_narrow(matrix))
    fail(ErrorKind::kUnsupported,
         "a weight of scheme {} with its columns in another order cannot be kept as codes",
         matrix.scheme.text());
  auto narrow = std::make_unique<NarrowWeight>(work);
  const std::int64_t panel = work.kernels->panel, panels = ceil_of(matrix.out_features, panel);
  narrow->out_features = matrix.out_features;
  narrow->in_features = matrix.in_features;
  narrow->compute = compute;
  narrow->group = matrix.group();
  const NarrowForm form = narrow_form(matrix);
  narrow->layout = form.layout;
  if (form.book) {
    narrow->book = *form.book;
    narrow->layout.book = &narrow->book;
  }
  narrow->keeps_codes = true;
  narrow->kernel = fmt::format("{}-bit codes{}", narrow->layout.bits, form.book ? " of a table" : "");
  narrow->panel_bytes = narrow->layout.panel_bytes(panel);
  narrow->panels = Buffer(weight_memory(), static_cast<std::size_t>(panels * narrow->panel_bytes));
  narrow->bytes = narrow->panels.bytes();
  each_item(work, panels, [&](std::int64_t p, int) {
    write_narrow_panel(narrow->panels.as<unsigned char>() + p * narrow->panel_bytes, form, matrix, panel,
                       p * panel, std::min(panel, matrix.out_features - p * panel));
  });
  return narrow;
}

void multiply_few(const CpuWork& work, std::span<const ProductCall<NarrowWeight>> calls) {
  struct Part {
    NarrowProduct product;
    Buffer padded, sums;
    std::int64_t panels = 0, step = 0, items = 0;  // panels of an item
  };
  constexpr std::int64_t kInlineBytes = 16 << 10;  // a microsecond of reading
  constexpr std::int64_t kLeastItemBytes = 32 << 10, kMostItemBytes = 256 << 10;
  const std::int64_t panel = work.kernels->panel;
  std::array<Part, kMostCallsAtOnce> parts;
  std::int64_t bytes = 0, items = 0;
  for (const ProductCall<NarrowWeight>& call : calls) bytes += static_cast<std::int64_t>(call.w->bytes);
  const std::int64_t item_bytes = std::clamp<std::int64_t>(bytes / (std::int64_t{8} * work.pool->size()),
                                                           kLeastItemBytes, kMostItemBytes);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const ProductCall<NarrowWeight>& call = calls[i];
    Part& part = parts.at(i);
    part.product.layout = call.w->layout;
    part.product.a = padded_rows(call.x, *call.w, part.padded, work, part.product.a_row);
    part.sums = room_for_sums(work, call.x.rows(), *call.w);
    if (call.w->needs_sums()) {
      sum_groups(call.x, *call.w, 0, call.x.rows(), part.sums.as<float>());
      part.product.sums = part.sums.as<float>();
      part.product.sums_row = call.w->layout.groups;
    }
    part.product.rows = call.x.rows();
    part.product.c_row = call.y.row_stride;
    part.panels = ceil_of(call.w->out_features, panel);
    part.step = std::clamp<std::int64_t>(item_bytes / std::max<std::int64_t>(call.w->panel_bytes, 1), 1,
                                         std::max<std::int64_t>(1, ceil_of(part.panels, work.pool->size())));
    part.items = call.x.rows() == 0 ? 0 : ceil_of(part.panels, part.step);
    items += part.items;
  }
  const auto run = [&](std::int64_t item, int) {
    std::size_t i = 0;
    while (item >= parts[i].items) item -= parts[i++].items;
    const ProductCall<NarrowWeight>& call = calls[i];
    const std::int64_t first = item * parts[i].step, end = std::min(parts[i].panels, first + parts[i].step);
    NarrowProduct product = parts[i].product;
    product.b = call.w->panel(first);
    product.c = call.y.as<float>() + first * panel;
    product.columns = std::min(end * panel, call.w->out_features) - first * panel;
    product.start = call.bias == nullptr ? nullptr : call.bias + first * panel;
    work.kernels->narrow_gemm(product);
  };
  if (bytes < kInlineBytes)
    for (std::int64_t item = 0; item < items; ++item) run(item, 0);
  else
    each_item(work, items, run);
}

void multiply(const CpuWork& work, const TensorView& y, const TensorView& x, const NarrowWeight& w,
              const float* bias) {
  if (x.rows() == 0 || w.out_features == 0) return;
  if (const ProductCall<NarrowWeight> call{y, x, &w, bias}; has_few_rows(call))
    return multiply_few(work, {&call, 1});
  const std::int64_t panel = work.kernels->panel, panels = ceil_of(w.out_features, panel);
  const Buffer sums = room_for_sums(work, x.rows(), w);
  if (w.needs_sums()) {
    constexpr std::int64_t kRowsAtOnce = 16;
    each_item(work, ceil_of(x.rows(), kRowsAtOnce), [&](std::int64_t some, int) {
      const std::int64_t first = some * kRowsAtOnce;
      sum_groups(x, w, first, std::min(kRowsAtOnce, x.rows() - first), sums.as<float>());
    });
  }
  UnpackedItem item{work, y, x, w, bias, w.needs_sums() ? sums.as<float>() : nullptr, 1};
  item.chunk_groups = std::clamp<std::int64_t>(kChunkBytes / item.unit_bytes(), 1, w.layout.groups);
  const std::int64_t fit = kRowBytes / (w.in_features * item.element());
  const std::int64_t block = std::clamp(fit / kTileRows * kTileRows, kLeastRows, kMostRows);
  const std::int64_t blocks = ceil_of(x.rows(), block);
  const std::int64_t wanted =
      ceil_of(std::int64_t{4} * work.pool->size(), blocks);  // so that workers end together
  const std::int64_t group = std::max<std::int64_t>(1, std::min<std::int64_t>(48, ceil_of(panels, wanted)));
  each_item(work, blocks * ceil_of(panels, group), [&](std::int64_t index, int worker) {
    const std::int64_t row = index % blocks * block, first = index / blocks * group;
    item.run(row, std::min(block, x.rows() - row), first, std::min(group, panels - first), worker);
  });
}

}  // namespace llmq
