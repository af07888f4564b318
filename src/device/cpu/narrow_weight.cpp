// Few BF16 rows meet the codes directly. Many rows, and all FP32 rows, meet panels that a worker unpacks into its own
// scratch for as many rows as stay in L2 beside them. Either way an element's sum is the same chain, so neither the
// number of rows nor the partition shows in a result.
#include "device/cpu/narrow_weight.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "device/cpu/weight_memory.h"

namespace llmq {
namespace {

constexpr std::int64_t kChunkBytes = 128 << 10;  // of an unpacked panel: a quarter of a small L2
constexpr std::int64_t kRowBytes = 384 << 10;    // of the rows that meet it
constexpr std::int64_t kLeastRows = 96, kMostRows = 480, kTileRows = 48;
constexpr std::int64_t kSetStride = 1024;  // rows this far apart (or a multiple) crowd into few sets of L1

std::int64_t ceil_of(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

template <class Body>
void parallel(const CpuWork& work, std::int64_t items, const Body& body) {
  const auto call = [&](std::size_t item, int worker) { body(static_cast<std::int64_t>(item), worker); };
  work.pool->parallel_for(static_cast<std::size_t>(items), std::cref(call));
}

// The narrowest type that holds every scale.
ScaleFormat format_of_scales(const std::vector<float>& scales) {
  const auto all = [&](auto exact) { return std::all_of(scales.begin(), scales.end(), exact); };
  if (all([](float s) { return to_float(to_bfloat16(s)) == s; })) return ScaleFormat::kBF16;
  if (all([](float s) { return to_float(to_float16(s)) == s; })) return ScaleFormat::kF16;
  return ScaleFormat::kF32;
}

void write_scale(unsigned char* scales, std::int64_t n, ScaleFormat format, float scale) {
  if (format == ScaleFormat::kF32) {
    std::memcpy(scales + 4 * n, &scale, sizeof scale);
    return;
  }
  const std::uint16_t bits = format == ScaleFormat::kBF16 ? to_bfloat16(scale).bits : to_float16(scale).bits;
  std::memcpy(scales + 2 * n, &bits, sizeof bits);
}

// Eight codes below 16, a byte each, as a word of ops/narrow.h.
std::uint32_t word_of(std::uint64_t codes) {
  const auto gathered = [](std::uint64_t even) {
    return static_cast<std::uint32_t>((even | even >> 12 | even >> 24 | even >> 36) & 0xffffu);
  };
  constexpr std::uint64_t kEven = 0x000f000f000f000full;
  return gathered(codes & kEven) | gathered((codes >> 8) & kEven) << 16;
}

// One group of one column into its place.
struct ColumnWriter {
  const NarrowWeight& w;
  const QuantizedMatrix& matrix;
  std::int64_t panel;

  void run(unsigned char* group, std::int64_t n, std::int64_t row, std::int64_t g) const {
    const NarrowLayout& layout = w.layout;
    const auto index = static_cast<std::size_t>(row * matrix.groups() + g);
    write_scale(group, n, layout.scales, matrix.scales[index]);
    const int zero = matrix.zeros[index], middle = layout.bits == 4 ? 8 : 0;
    unsigned char* const zeros = group + panel * layout.scale_bytes();
    unsigned char* const codes = zeros + (layout.zeros ? panel : 0);
    const std::uint8_t* const from = matrix.codes.data() + row * matrix.in_features + g * w.group;
    // What is added to a code as it is stored; the zero then reads as layout.zeros says.
    const int shift = layout.zeros ? (layout.bits == 4 ? 0 : -128) : middle - zero;
    if (layout.zeros) zeros[n] = static_cast<unsigned char>(zero + shift);
    for (std::int64_t k = 0; k < layout.group; k += kNarrowBlock) {
      std::uint8_t block[kNarrowBlock] = {};
      for (std::int64_t i = 0; i < kNarrowBlock; ++i)
        block[i] = static_cast<std::uint8_t>((k + i < w.group ? from[k + i] : zero) + shift);
      if (layout.bits == 4) {
        std::uint64_t eight;
        std::memcpy(&eight, block, sizeof eight);
        const std::uint32_t word = word_of(eight);
        std::memcpy(codes + (k / kNarrowBlock * panel + n) * 4, &word, sizeof word);
      } else {
        for (std::int64_t i = 0; i < kNarrowBlock; ++i) codes[(k + i) * panel + n] = block[i];
      }
    }
  }
};

// Rows [first, first + rows) against panels [panel, panel + panels), each unpacked once.
struct UnpackedItem {
  const CpuWork& work;
  const TensorView& y;
  const TensorView& x;
  const NarrowWeight& w;
  const float* bias;
  std::int64_t chunk_groups;  // of a panel that are unpacked at once

  std::int64_t element() const { return format_bytes(format_of(w.compute)); }
  std::int64_t unit_bytes() const { return w.layout.group * element() * work.kernels->panel; }  // of a group
  std::int64_t spread_stride() const { return ceil_of(w.in_features * element(), 128) * 128 + 64; }
  bool crowded(std::int64_t rows) const { return x.row_stride * element() % kSetStride == 0 && rows > 1; }

  void run(std::int64_t first_row, std::int64_t rows, std::int64_t first_panel, std::int64_t panels,
           int worker) const {
    const std::int64_t panel = work.kernels->panel, scale_bytes = chunk_groups * panel * 4;
    const std::int64_t copy_bytes = crowded(rows) ? rows * spread_stride() : 0;
    unsigned char* const memory = work.scratch->take(
        worker, static_cast<std::size_t>(chunk_groups * unit_bytes() + scale_bytes + copy_bytes));
    float* const scales = reinterpret_cast<float*>(memory + chunk_groups * unit_bytes());
    const unsigned char* a = x.as<const unsigned char>() + first_row * x.row_stride * element();
    std::int64_t a_row = x.row_stride * element();
    if (copy_bytes > 0) {
      unsigned char* const copy = memory + chunk_groups * unit_bytes() + scale_bytes;
      for (std::int64_t r = 0; r < rows; ++r)
        std::memcpy(copy + r * spread_stride(), a + r * a_row,
                    static_cast<std::size_t>(w.in_features * element()));
      a = copy;
      a_row = spread_stride();
    }
    for (std::int64_t p = first_panel; p < first_panel + panels; ++p)
      for (std::int64_t g = 0; g < w.layout.groups; g += chunk_groups) {
        const std::int64_t groups = std::min(chunk_groups, w.layout.groups - g);
        for (std::int64_t i = 0; i < groups; ++i)
          work.kernels->narrow_unpack[static_cast<int>(format_of(w.compute))](
              memory + i * unit_bytes(), scales + i * panel,
              w.panel(p) + (g + i) * w.layout.group_bytes(panel), w.layout);
        for (std::int64_t r = 0; r < rows; r += kTileRows)
          multiply_tile(a + r * a_row, a_row, first_row + r, std::min(kTileRows, rows - r), p, g, groups,
                        memory, scales);
      }
  }

  // BF16: group after group, each sum scaled. FP32: the values have their scales, and one chain runs through all.
  void multiply_tile(const unsigned char* a, std::int64_t a_row, std::int64_t row, std::int64_t rows,
                     std::int64_t p, std::int64_t first_group, std::int64_t groups,
                     const unsigned char* unpacked, const float* scales) const {
    const std::int64_t panel = work.kernels->panel;
    GemmPanel g;
    g.a_row = a_row;
    g.c = y.row<float>(row) + p * panel;
    g.c_row = y.row_stride;
    g.rows = rows;
    g.depth = w.group;
    g.columns = std::min(panel, w.out_features - p * panel);
    g.start = bias == nullptr ? nullptr : bias + p * panel;
    for (std::int64_t i = 0; i < groups; ++i) {
      g.a = a + (first_group + i) * w.group * element();
      g.b = unpacked + i * unit_bytes();
      g.accumulate = first_group + i > 0;
      if (w.compute == Compute::kBFloat16) g.scale = scales + i * panel;
      work.kernels->gemm[static_cast<int>(format_of(w.compute))](g);
    }
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

void multiply_few(const CpuWork& work, const TensorView& y, const TensorView& x, const NarrowWeight& w,
                  const float* bias) {
  const std::int64_t panel = work.kernels->panel, panels = ceil_of(w.out_features, panel);
  Buffer padded;
  NarrowProduct all;
  all.layout = w.layout;
  all.a = padded_rows(x, w, padded, work, all.a_row);
  all.rows = x.rows();
  all.c_row = y.row_stride;
  const auto run = [&](std::int64_t first, std::int64_t end) {
    NarrowProduct part = all;
    part.b = w.panel(first);
    part.c = y.as<float>() + first * panel;
    part.columns = std::min(end * panel, w.out_features) - first * panel;
    part.start = bias == nullptr ? nullptr : bias + first * panel;
    work.kernels->narrow_gemm(part);
  };
  constexpr std::int64_t kInlineBytes = 16 << 10, kItemBytes = 32 << 10;  // a microsecond or two of reading
  if (panels * w.panel_bytes < kInlineBytes) return run(0, panels);
  const std::int64_t step =
      std::clamp<std::int64_t>(kItemBytes / w.panel_bytes, 1, ceil_of(panels, work.pool->size()));
  parallel(work, ceil_of(panels, step),
           [&](std::int64_t item, int) { run(item * step, std::min(panels, (item + 1) * step)); });
}

}  // namespace

bool can_stay_narrow(const QuantizedMatrix& matrix) {
  const QuantScheme& scheme = matrix.scheme;
  return scheme.weight_type == WeightType::kInteger && scheme.activation_scale == ActivationScale::kNone &&
         scheme.granularity != Granularity::kBlock && matrix.column_group.empty() &&
         matrix.kept_columns.empty() && matrix.in_features > 0 && matrix.in_features % matrix.group() == 0;
}

std::unique_ptr<NarrowWeight> narrow_weight(const CpuWork& work, const QuantizedMatrix& matrix,
                                            Compute compute) {
  if (!can_stay_narrow(matrix))
    fail(ErrorKind::kUnsupported,
         "a weight of scheme {} with its columns in another order cannot be kept as codes",
         matrix.scheme.text());
  auto narrow = std::make_unique<NarrowWeight>();
  const std::int64_t panel = work.kernels->panel, panels = ceil_of(matrix.out_features, panel);
  narrow->kernels = work.kernels;
  narrow->out_features = matrix.out_features;
  narrow->in_features = matrix.in_features;
  narrow->compute = compute;
  narrow->group = matrix.group();
  narrow->layout = {matrix.scheme.bits <= 4 ? 4 : 8, !matrix.scheme.symmetric,
                    format_of_scales(matrix.scales), matrix.groups(),
                    ceil_of(matrix.group(), kNarrowBlock) * kNarrowBlock};
  narrow->panel_bytes = narrow->layout.groups * narrow->layout.group_bytes(panel);
  narrow->panels = Buffer(weight_memory(), static_cast<std::size_t>(panels * narrow->panel_bytes));
  narrow->bytes = narrow->panels.bytes();
  const ColumnWriter writer{*narrow, matrix, panel};
  parallel(work, panels, [&](std::int64_t p, int) {
    unsigned char* const at = narrow->panels.as<unsigned char>() + p * narrow->panel_bytes;
    const std::int64_t columns = std::min(panel, matrix.out_features - p * panel);
    if (columns < panel) std::memset(at, 0, static_cast<std::size_t>(narrow->panel_bytes));
    for (std::int64_t g = 0; g < narrow->layout.groups; ++g)
      for (std::int64_t n = 0; n < columns; ++n)
        writer.run(at + g * narrow->layout.group_bytes(panel), n, p * panel + n, g);
  });
  return narrow;
}

void multiply(const CpuWork& work, const TensorView& y, const TensorView& x, const NarrowWeight& w,
              const float* bias) {
  if (x.rows() == 0 || w.out_features == 0) return;
  if (w.compute == Compute::kBFloat16 && x.rows() <= kNarrowRows) return multiply_few(work, y, x, w, bias);
  const std::int64_t panel = work.kernels->panel, panels = ceil_of(w.out_features, panel);
  UnpackedItem item{work, y, x, w, bias, 1};
  item.chunk_groups = std::clamp<std::int64_t>(kChunkBytes / item.unit_bytes(), 1, w.layout.groups);
  const std::int64_t fit = kRowBytes / (w.in_features * item.element());
  const std::int64_t block = std::clamp(fit / kTileRows * kTileRows, kLeastRows, kMostRows);
  const std::int64_t blocks = ceil_of(x.rows(), block);
  const std::int64_t wanted = ceil_of(4 * work.pool->size(), blocks);  // so that workers end together
  const std::int64_t group = std::max<std::int64_t>(1, std::min<std::int64_t>(48, ceil_of(panels, wanted)));
  parallel(work, blocks * ceil_of(panels, group), [&](std::int64_t index, int worker) {
    const std::int64_t row = index % blocks * block, first = index / blocks * group;
    item.run(row, std::min(block, x.rows() - row), first, std::min(group, panels - first), worker);
  });
}

}  // namespace llmq
