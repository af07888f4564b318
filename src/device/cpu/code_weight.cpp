// Two passes: every row is rounded once, then items of (rows x columns) multiply. An item takes a few rows
// and panels at a time, group by group: the sums of a group lie in scratch, what they come to is added up in
// y; of codes of 4 bits all of it stays in registers. Nothing is summed across items.
#include "device/cpu/code_weight.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "device/cpu/narrow_panel.h"
#include "tensor/packed_layout.h"

namespace llmq {
namespace {

constexpr std::int64_t kBlockBytes = 4096;
constexpr std::int64_t kChunkPanels = 4, kFewRows = 48;  // the sums of so many rows and panels stay in L1
constexpr std::int64_t kRowsOfAnItem = 8;                // rows of one item of the rounding
constexpr float kOne = 1.0f;

// The inputs as codes: row m at codes + m * stride, groups group_step elements apart, scales and sums of row
// m at m * its count.
struct RoundedRows {
  Buffer memory;
  unsigned char* codes = nullptr;
  std::int64_t stride = 0;  // bytes; an odd number of cache lines, so that rows spread over the sets of L1
  float* scales = nullptr;
  std::int64_t scale_count = 1;
  std::int32_t* sums = nullptr;  // [rows][groups]

  RoundedRows(const CpuWork& work, std::int64_t rows, const CodeWeight& w)
      : stride(ceil_of(w.group_step * w.groups * w.element(), 128) * 128 + 64),
        scale_count(w.activation == ActivationScale::kTokenGroup ? w.groups : 1) {
    const auto bytes = [&](std::int64_t n) { return ceil_of(n, 64) * 64; };
    const std::int64_t scale_bytes = bytes(rows * scale_count * 4), code_bytes = rows * stride;
    memory =
        Buffer(work.memory, static_cast<std::size_t>(code_bytes + scale_bytes + bytes(rows * w.groups * 4)));
    codes = memory.as<unsigned char>();
    scales = reinterpret_cast<float*>(codes + code_bytes);
    sums = reinterpret_cast<std::int32_t*>(codes + code_bytes + scale_bytes);
  }
};

struct Rounding {
  const CpuWork& work;
  const TensorView& x;
  const CodeWeight& w;
  RoundedRows& into;

  void run(std::int64_t m) const {
    const CpuKernels& kernels = *work.kernels;
    const int format = x.dtype == DType::kF32 ? 0 : 1;
    const std::int64_t element = element_bytes(x.dtype);
    const unsigned char* const row = x.as<const unsigned char>() + m * x.row_stride * element;
    const float top = input_top(w.floats ? WeightType::kFloat8 : WeightType::kInteger);
    float* const scales = into.scales + m * into.scale_count;
    if (w.inputs.groups.size != 0) {
      scales[0] = w.inputs.factor;
      return round_groups(row, reinterpret_cast<BFloat16*>(into.codes + m * into.stride));
    }
    const auto scale_of = [&](std::int64_t first, std::int64_t count) {
      const float found = kernels.row_scale[format](row + first * element, count, top, kLeastInputScale);
      if (w.activation != ActivationScale::kTensor) return found;
      return std::isfinite(found) ? w.input_scale : std::numeric_limits<float>::quiet_NaN();
    };
    if (into.scale_count == 1) scales[0] = scale_of(0, w.in_features);
    for (std::int64_t g = 0; g < w.groups; ++g) {
      const std::int64_t first = g * w.group, count = w.columns_of(g);
      if (into.scale_count > 1) scales[g] = scale_of(first, count);
      const float scale = scales[into.scale_count == 1 ? 0 : g];
      unsigned char* const to = into.codes + m * into.stride + g * w.group_step * w.element();
      if (w.floats)
        kernels.round_float8[format](reinterpret_cast<BFloat16*>(to), row + first * element, scale, count);
      else
        into.sums[m * w.groups + g] = kernels.round_int8[format](reinterpret_cast<std::int8_t*>(to),
                                                                 row + first * element, scale, count);
      std::memset(to + count * w.element(), 0, static_cast<std::size_t>((w.depth(g) - count) * w.element()));
    }
  }

  // The same arithmetic at every level.
  void round_groups(const unsigned char* row, BFloat16* to) const {
    const InputGroups& groups = w.inputs.groups;
    float values[InputGroups::kMostInGroup];
    for (std::int64_t first = 0; first < w.in_features; first += groups.size) {
      const std::int64_t count = std::min<std::int64_t>(groups.size, w.in_features - first);
      for (std::int64_t k = 0; k < count; ++k)
        values[k] = x.dtype == DType::kF32 ? reinterpret_cast<const float*>(row)[first + k]
                                           : to_float(reinterpret_cast<const BFloat16*>(row)[first + k]);
      round_input_group(groups, values, static_cast<int>(count));
      for (std::int64_t k = 0; k < count; ++k) to[first + k] = to_bfloat16(values[k]);
    }
    for (std::int64_t k = w.in_features; k < w.depth(0); ++k) to[k] = {0};
  }
};

// Whether two products take the same codes of the same inputs.
bool rounds_alike(const ProductCall<CodeWeight>& a, const ProductCall<CodeWeight>& b) {
  const CodeWeight &v = *a.w, &w = *b.w;
  return a.x.pointer == b.x.pointer && a.x.dtype == b.x.dtype && a.x.rows() == b.x.rows() &&
         a.x.row_stride == b.x.row_stride && v.in_features == w.in_features && v.activation == w.activation &&
         v.floats == w.floats && v.groups == w.groups && v.group == w.group && v.group_step == w.group_step &&
         v.inputs == w.inputs && (v.activation != ActivationScale::kTensor || v.input_scale == w.input_scale);
}

// One block of rows against one group of panels.
struct CodeItem {
  const CpuWork& work;
  const TensorView& y;
  const RoundedRows& rows;
  const CodeWeight& w;
  const float* bias;

  void run(std::int64_t first_row, std::int64_t count, std::int64_t first_panel, std::int64_t panels,
           int worker) const {
    const std::int64_t panel = work.kernels->panel;
    if (w.nibbles) return multiply_nibbles(first_row, count, first_panel, panels);
    unsigned char* const sums =
        work.scratch->take(worker, static_cast<std::size_t>(kFewRows * kChunkPanels * panel * 4));
    for (std::int64_t p = 0; p < panels; p += kChunkPanels) {
      const std::int64_t n = (first_panel + p) * panel;
      const std::int64_t columns = std::min(std::min(kChunkPanels, panels - p) * panel, w.out_features - n);
      for (std::int64_t r = 0; r < count; r += kFewRows) {
        const std::int64_t few = std::min(kFewRows, count - r);
        // y's lines come while the products run, so that the sums' stores do not wait for them.
        for (std::int64_t row = first_row + r; row < first_row + r + few; ++row)
          for (std::int64_t c = 0; c < columns; c += 16) __builtin_prefetch(y.row<float>(row) + n + c, 1);
        for (std::int64_t g = 0; g < w.groups; ++g) {
          multiply_group(first_row + r, few, first_panel + p, columns, g, sums);
          add_group(first_row + r, few, n, columns, g, sums);
        }
      }
    }
  }

  void multiply_nibbles(std::int64_t first_row, std::int64_t count, std::int64_t first_panel,
                        std::int64_t panels) const {
    const std::int64_t n = first_panel * work.kernels->panel;
    NibbleProduct product;
    product.layout = *w.nibbles;
    product.a = rows.codes + first_row * rows.stride;
    product.a_row = rows.stride;
    product.b = w.panels.as<unsigned char>() + first_panel * w.panel_bytes;
    product.c = y.row<float>(first_row) + n;
    product.c_row = y.row_stride;
    product.rows = count;
    product.columns = std::min(panels * work.kernels->panel, w.out_features - n);
    product.sums = rows.sums + first_row * w.groups;
    product.sums_row = w.groups;
    product.factors = rows.scales + first_row;
    product.bias = bias == nullptr ? nullptr : bias + n;
    work.kernels->nibble_gemm(product);
  }

  void multiply_group(std::int64_t first_row, std::int64_t count, std::int64_t first_panel,
                      std::int64_t columns, std::int64_t g, unsigned char* sums) const {
    const std::int64_t panel = work.kernels->panel, element = w.element(), depth = w.depth(g);
    const auto gemm =
        w.floats ? work.kernels->gemm[static_cast<int>(CpuFormat::kBF16)] : work.kernels->gemm_int8;
    for (std::int64_t k = 0; k < depth; k += kBlockBytes / element) {
      const std::int64_t at = (g * w.group_step + k) * element;
      GemmPanel part;
      part.a = rows.codes + first_row * rows.stride + at;
      part.a_row = rows.stride;
      part.b = w.panels.as<unsigned char>() + first_panel * w.panel_bytes + at * panel;
      part.b_panel = w.panel_bytes;
      part.c = reinterpret_cast<float*>(sums);
      part.c_row = kChunkPanels * panel;
      part.rows = count;
      part.depth = std::min(kBlockBytes / element, depth - k);
      part.columns = columns;
      part.accumulate = k > 0;
      gemm(part);
    }
  }

  void add_group(std::int64_t first_row, std::int64_t count, std::int64_t n, std::int64_t columns,
                 std::int64_t g, const unsigned char* sums) const {
    const auto at = static_cast<std::size_t>(g * w.out_features + n);
    ScaledSums part;
    part.sums = sums;
    part.sums_row = kChunkPanels * work.kernels->panel;
    part.scales = w.scales.data() + at;
    part.y = y.row<float>(first_row) + n;
    part.y_row = y.row_stride;
    part.rows = count;
    part.columns = columns;
    part.first = g == 0;
    if (g + 1 == w.groups) {
      part.factors = rows.scale_count == 1 ? rows.scales + first_row : &kOne;
      part.factor_step = rows.scale_count == 1 ? 1 : 0;
      part.bias = bias == nullptr ? nullptr : bias + n;
    }
    if (w.floats) {
      part.row_step = rows.scale_count;
      part.row_scales = rows.scale_count == 1 ? nullptr : rows.scales + first_row * rows.scale_count + g;
      work.kernels->add_float8_sums(part);
    } else {
      part.zeros = w.zeros.data() + at;
      part.row_step = w.groups;
      part.code_sums = rows.sums + first_row * w.groups + g;
      work.kernels->add_int8_sums(part);
    }
  }
};

// Whether codes lie two to a byte.
bool lies_in_nibbles(const QuantizedMatrix& matrix) {
  return matrix.scheme.weight_type == WeightType::kInteger && matrix.scheme.bits <= 4 &&
         !matrix.code_values && matrix.minima.empty() && matrix.factors.together == 0 &&
         matrix.in_features > 0 && matrix.in_features % matrix.group() == 0;
}

void pack_nibbles(const CpuWork& work, const QuantizedMatrix& matrix, CodeWeight& packed) {
  const NarrowForm form = narrow_form(matrix, CodeOrder::kQuads);
  const std::int64_t n = matrix.out_features, panel = work.kernels->panel, panels = ceil_of(n, panel);
  packed.nibbles = form.layout;
  packed.kernel = "int8 products of 4-bit codes";
  packed.group_step = form.layout.group;
  packed.panel_bytes = form.layout.panel_bytes(panel);
  packed.panels = Buffer(host_memory(), static_cast<std::size_t>(panels * packed.panel_bytes));
  packed.bytes = packed.panels.bytes();
  each_item(work, panels, [&](std::int64_t p, int) {
    write_narrow_panel(packed.panels.as<unsigned char>() + p * packed.panel_bytes, form, matrix, panel,
                       p * panel, std::min(panel, n - p * panel));
  });
}

}  // namespace

std::unique_ptr<CodeWeight> pack_codes(const CpuWork& work, const QuantizedMatrix& matrix, Compute compute) {
  check_low_precision(matrix);
  auto packed = std::make_unique<CodeWeight>(work);
  const std::int64_t n = matrix.out_features, k = matrix.in_features, panel = work.kernels->panel;
  packed->out_features = n;
  packed->in_features = k;
  packed->compute = compute;
  packed->floats = matrix.scheme.weight_type != WeightType::kInteger;
  packed->inputs = float_inputs(matrix);
  packed->keeps_codes = true;
  const bool in_groups = packed->inputs.groups.size != 0;
  packed->kernel = in_groups        ? "floats in groups as bf16"
                   : packed->floats ? "e4m3 products as bf16"
                                    : "int8 products";
  packed->activation = matrix.scheme.activation_scale;
  packed->input_scale = matrix.input_scale;
  packed->group = in_groups ? k : std::min(matrix.group(), k);
  packed->groups = in_groups ? 1 : matrix.groups();
  if (lies_in_nibbles(matrix)) {
    pack_nibbles(work, matrix, *packed);
    return packed;
  }
  packed->group_step = ceil_of(packed->group, packed->unit()) * packed->unit();
  const std::int64_t element = packed->element(), depth = packed->group_step * packed->groups;
  packed->panel_bytes = depth * element * panel;
  packed->panels = Buffer(host_memory(), static_cast<std::size_t>(ceil_of(n, panel) * packed->panel_bytes));
  each_item(work, ceil_of(n, panel), [&](std::int64_t p, int worker) {
    const std::int64_t columns = std::min(panel, n - p * panel), row_bytes = depth * element;
    unsigned char* const rows = work.scratch->take(worker, static_cast<std::size_t>(panel * row_bytes));
    std::memset(rows, 0, static_cast<std::size_t>(columns * row_bytes));
    for (std::int64_t c = 0; c < columns; ++c)
      for (std::int64_t g = 0; g < packed->groups; ++g) {
        const std::uint8_t* const codes = matrix.codes.data() + (p * panel + c) * k + g * packed->group;
        unsigned char* const to = rows + c * row_bytes + g * packed->group_step * element;
        if (in_groups)
          weight_levels(matrix, p * panel + c, reinterpret_cast<BFloat16*>(to));
        else if (packed->floats)
          for (std::int64_t i = 0; i < packed->columns_of(g); ++i)
            reinterpret_cast<BFloat16*>(to)[i] = to_bfloat16(to_float(Float8{codes[i]}));
        else
          std::memcpy(to, codes, static_cast<std::size_t>(packed->columns_of(g)));
      }
    const auto pack =
        packed->floats ? work.kernels->pack[static_cast<int>(CpuFormat::kBF16)] : work.kernels->pack_int8;
    pack(packed->panels.as<unsigned char>() + p * packed->panel_bytes, rows, depth, columns, depth);
  });
  if (in_groups)
    packed->scales.assign(static_cast<std::size_t>(n), 1.0f);
  else
    packed->scales = transposed<float>(matrix.scales, n, packed->groups);
  if (!packed->floats) {
    const std::vector<std::uint8_t> zeros = transposed<std::uint8_t>(matrix.zeros, n, packed->groups);
    packed->zeros.assign(zeros.begin(), zeros.end());
  }
  packed->bytes = packed->panels.bytes() + (packed->scales.size() + packed->zeros.size()) * 4;
  return packed;
}

void multiply(const CpuWork& work, std::span<const ProductCall<CodeWeight>> calls) {
  const ProductItems items(calls, work.kernels->panel, kBlockRows, kGroupColumns, *work.pool);
  std::array<std::optional<RoundedRows>, kMostCallsAtOnce> rounded;  // none where another call's rows serve
  // the call whose rounded rows a call takes
  std::array<std::size_t, kMostCallsAtOnce> source{};
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const ProductCall<CodeWeight>& call = calls[i];
    while (source[i] < i && !(rounded[source[i]] && rounds_alike(call, calls[source[i]]))) ++source[i];
    if (source[i] != i) continue;
    const Rounding rounding{work, call.x, *call.w, rounded[i].emplace(work, call.x.rows(), *call.w)};
    items.each(ceil_of(call.x.rows(), kRowsOfAnItem), [&](std::int64_t few, int) {
      const std::int64_t first = few * kRowsOfAnItem;
      for (std::int64_t m = first; m < std::min(call.x.rows(), first + kRowsOfAnItem); ++m) rounding.run(m);
    });
  }
  items.each_product(
      [&](std::size_t call, std::int64_t row, std::int64_t first, std::int64_t panels, int worker) {
        const ProductCall<CodeWeight>& c = calls[call];
        const CodeItem item{work, c.y, *rounded[source[call]], *c.w, c.bias};
        item.run(row, std::min(kBlockRows, c.x.rows() - row), first, panels, worker);
      });
}

}  // namespace llmq
