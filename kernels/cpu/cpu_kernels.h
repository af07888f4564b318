// The table of CPU kernels: one per instruction set, chosen once at start. Plain functions on raw pointers,
// one thread each; src/device/cpu partitions the work. Memory is host memory; shapes are facts.
//
// Every product with a weight goes through `gemm`. One unit along the depth is 4 bytes: one FP32 number, or
// two neighbouring BF16 numbers. A panel is `panel` columns of B as [units][panel] such units, zero where
// there is no column. Each element of C is one chain over the units in order, from its start value on:
//   f32:                          c = fma(a, b, c)                    the same bits at every level
//   bf16, with vdpbf16ps:         c = c (+) a1 b1 (+) a0 b0           as the instruction rounds; it flushes
//                                                                     denormals to zero
//   bf16, without:                c = fma(a1, b1, fma(a0, b0, c))     exact products, one rounding per
//                                                                     addition
//   bf16, with AMX:               c = c + (even + odd), 16 units at a time, each a chain from 0 on
//                                 (kernels/cpu/amx/tiles.h)
// so a row's result depends neither on other rows nor on tiling or threads; the three round differently, so
// bf16 results differ between levels, never within one.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "base/half.h"
#include "kernels/common/activation.h"
#include "kernels/common/kv_row.h"
#include "kernels/common/look_back.h"
#include "kernels/common/row_tile.h"

namespace llmq {

enum class CpuFormat : unsigned char { kF32, kBF16 };

// C[rows, columns] = start (or C itself where accumulate) + A[rows, depth] B.
struct GemmPanel {
  const void* a = nullptr;  // row r, unit u at a + r * a_row + 4 u; transposed: at a + 4 r + u * a_row
  int64_t a_row = 0;        // bytes
  bool transposed = false;  // not with INT8
  const void* b = nullptr;  // panels, b_panel bytes from one to the next
  int64_t b_panel = 0;      // of no account for one panel; gemm_groups: bytes from one group to the next
  float* c = nullptr;
  int64_t c_row = 0;             // elements
  int64_t rows = 0, depth = 0;   // depth in elements; transposed bf16: even
  int64_t columns = 0;           // all panels are whole but the last
  const float* start = nullptr;  // per column; null: 0
  bool accumulate = false;
  // gemm_groups: [groups][panel], or null. With it a group's chain begins at 0 and ends as C = fma(sum,
  // scale, start or C).
  const float* scale = nullptr;
  // With `scale`, or null, as scale lies: first C = fma(row_sum, offset, start or C), row_sum of row r and
  // group i at [r * row_sums_row + i].
  const float* offset = nullptr;
  const float* row_sums = nullptr;
  int64_t row_sums_row = 0;
};

// A weight that stays in few bits: panel by panel, group by group of the depth, each group with its scales in
// front of its codes (kernels/cpu/ops/narrow_codes.h has the bytes).
enum class ScaleFormat : unsigned char {
  kF32,
  kBF16,
  kF16,
  kFactors,   // an FP16 number of several groups times a byte of each, and minima alike
  kNibbles,   // so, scale and minimum of a group in one byte
  kLevels,    // E4M3 without a sign, over one number of the weight or times it
  kExponents  // e, for 2^(e - 127)
};
// What 4-bit codes stand for that are no integers: E2M1, NF4, a table of a GGUF.
struct CodeBook {
  alignas(64) float values[16];    // of float32 compute, which rounds their products with scales to `rounded`
  alignas(64) float nearest[16];   // of bfloat16 compute: BF16 numbers
  alignas(64) BFloat16 words[32];  // the same, twice
  ScaleFormat rounded = ScaleFormat::kF32;  // kF32, kBF16 or kF16
};
// Codes along the depth that one step of a product takes.
inline constexpr int64_t kNarrowBlock = 8;
// Codes of a column that share words; groups are padded to it.
constexpr int64_t narrow_unit(int bits) { return bits == 5 ? 32 : bits == 4 || bits == 8 ? 8 : 16; }

struct NarrowLayout {
  int bits = 4;        // of a stored code: 2, 3, 4, 5, 6 or 8
  bool zeros = false;  // with 4 and 8 bits alone
  bool quads = false;  // with 4 bits: in the order that INT8 products take
  ScaleFormat scales = ScaleFormat::kBF16;
  int64_t groups = 0, group = 0;   // group: padded
  bool minima = false;             // code * scale - minimum, without zeros
  int64_t together = 1;            // groups of one FP16 number, with factors
  const CodeBook* book = nullptr;  // 4 bits, without zeros and minima; null: integers
  float global = 1;                // kLevels: a scale is level / global or level * global ..
  bool divides = false;            // .. rounded once; bfloat16 compute takes level * level_unit / 2^120
  float level_unit = 1;

  bool has_factors() const { return scales == ScaleFormat::kFactors || scales == ScaleFormat::kNibbles; }
  int64_t scale_bytes() const {
    return scales == ScaleFormat::kF32                                   ? 4
           : scales == ScaleFormat::kBF16 || scales == ScaleFormat::kF16 ? 2
                                                                         : 1;
  }
  int64_t header_bytes(int64_t panel) const {  // of a group
    const int64_t numbers = minima && scales != ScaleFormat::kNibbles ? 2 : 1;
    return panel * (scale_bytes() * numbers + (zeros ? 1 : 0));
  }
  int64_t group_bytes(int64_t panel) const { return header_bytes(panel) + panel * group * bits / 8; }
  // Of the FP16 numbers of so many groups: they lie in front of the panel's groups.
  int64_t factor_bytes_of_block(int64_t panel) const { return has_factors() ? panel * (minima ? 4 : 2) : 0; }
  int64_t factor_bytes(int64_t panel, int64_t of_groups) const {
    return has_factors() ? of_groups / together * factor_bytes_of_block(panel) : 0;
  }
  int64_t panel_bytes(int64_t panel) const {
    return factor_bytes(panel, groups) + groups * group_bytes(panel);
  }
};

// One group of a panel.
struct NarrowGroup {
  const NarrowLayout* layout = nullptr;
  const unsigned char* at = nullptr;
  const unsigned char* factors = nullptr;  // of this group, where the layout has some
};
// The group with this index of the panel at b.
inline NarrowGroup narrow_group(const NarrowLayout& layout, const unsigned char* b, int64_t panel,
                                int64_t group) {
  return {&layout, b + layout.factor_bytes(panel, layout.groups) + group * layout.group_bytes(panel),
          b + layout.factor_bytes(panel, group)};
}

// C[rows, columns] = start, then for each group g in order
//   C = C + A_g (middle scale_g - minimum_g)   where there are minima; A_g the sum of the row's group
//   C = C + scale_g (sum of a (code - zero))   each an fma; of a book, what it says in place of code - zero
// `gemm_groups`, group after group, in the same bits, without a panel in between: `narrow_rows` rows share
// one expansion.
struct NarrowProduct {
  NarrowLayout layout;
  const void* a = nullptr;  // BF16, the groups padded as the codes are
  int64_t a_row = 0;        // bytes
  const unsigned char* b = nullptr;
  float* c = nullptr;
  int64_t c_row = 0;  // elements
  int64_t rows = 0, columns = 0;
  const float* start = nullptr;
  const float* sums = nullptr;  // A_g at [row * sums_row + g], with minima
  int64_t sums_row = 0;
};

// A product of INT8 rows with codes of 4 bits in quads, without factors, minima and a book
// (kernels/cpu/ops/nibbles.h has the arithmetic).
struct NibbleProduct {
  NarrowLayout layout;
  const unsigned char* a = nullptr;  // signed codes, each group padded by zeros as the weight's is
  int64_t a_row = 0;                 // bytes
  const unsigned char* b = nullptr;
  float* c = nullptr;
  int64_t c_row = 0;  // elements
  int64_t rows = 0, columns = 0;
  const int32_t* sums = nullptr;  // of row r's codes in group g at [r * sums_row + g]
  int64_t sums_row = 0;
  const float* factors = nullptr;  // of row r at [r]
  const float* bias = nullptr;     // per column; null: none
};

// Query heads of one KV head at consecutive positions of one sequence.
struct AttentionTile {
  const float* q = nullptr;  // [positions][q_row], the group's heads side by side
  int64_t q_row = 0;
  void* out = nullptr;  // of the compute format
  int64_t out_row = 0;
  int positions = 0, group = 0, head_dim = 0;
  float scale = 0, softcap = 0;  // softcap 0: none
  const float* sinks = nullptr;  // of the group's heads; null: none
  int64_t first_position = 0;
  LookBack look_back = {};
  const void* keys = nullptr;
  const void* values = nullptr;
  CpuFormat pages = CpuFormat::kF32;
  bool packed = false;  // the pages hold rows of these kinds, [blocks][kv_heads][block_size]
  KvRow key_row = {}, value_row = {};
  float key_scale = 1, value_scale = 1;
  int block_size = 0, kv_heads = 0, kv_head = 0;
  const int32_t* block_table = nullptr;
  unsigned char* scratch = nullptr;  // attention_scratch() bytes, aligned to 64
};

// A depthwise convolution over the rows of one sequence, some of its channels (kernels/cpu/ops/recurrence.h).
struct ConvRows {
  float* y = nullptr;
  int64_t y_row = 0;
  const float* x = nullptr;
  int64_t x_row = 0;
  const float* weight = nullptr;  // [taps], the oldest row's first
  int64_t weight_row = 0;
  const float* before = nullptr;  // [taps - 1], what stood before the first row
  int64_t before_row = 0;
  int64_t taps = 0, rows = 0, channels = 0;
};

// The gated delta rule over the rows of one sequence, one head (kernels/cpu/ops/recurrence.h).
struct DeltaHead {
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  int64_t q_row = 0, k_row = 0, v_row = 0;
  const float *decay = nullptr, *share = nullptr;  // of each row
  float* state = nullptr;                          // [key_dim][value_dim]
  float* out = nullptr;
  int64_t out_row = 0;
  int64_t rows = 0, key_dim = 0, value_dim = 0;
  float scale = 0;           // of a query
  float* scratch = nullptr;  // 2 key_dim
};

struct SoftmaxSum {
  float max;
  double sum;
};  // sum_i exp(x_i - max)
struct DivergenceSum {
  SoftmaxSum p, q;
  double weighted;
};  // weighted = sum_i exp(p_i - max p) (p_i - q_i)

// What becomes of the sums of one group of columns of A against columns of B (kernels/cpu/ops/codes.h).
struct ScaledSums {
  const void* sums = nullptr;  // INT32 or FP32, row r at sums + r * sums_row
  int64_t sums_row = 0;
  const int32_t* zeros = nullptr;      // INT8: per column
  const float* scales = nullptr;       // per column
  const int32_t* code_sums = nullptr;  // INT8: of row r's codes at [r * row_step]
  const float* row_scales = nullptr;   // E4M3: of row r's group at [r * row_step]; null: 1
  int64_t row_step = 0;
  float* y = nullptr;
  int64_t y_row = 0;
  int64_t rows = 0, columns = 0;
  bool first = true;               // y is written, not added to
  const float* factors = nullptr;  // with the last group: of row r at [r * factor_step]
  int64_t factor_step = 0;
  const float* bias = nullptr;  // per column, added after the factor; null: none
};

struct LeastMost {
  float least, most;
};  // least = min(0, w), most = max(0, w)
struct CodeGrid {
  float scale, zero, top;
};  // code = clamp(round(w / scale) + zero, 0, top), ties to even

struct CpuKernels {
  const char* name;  // "scalar", "avx2", "avx512", "avx512_bf16", "amx"
  int panel;         // columns of one panel, a divisor of 64
  int row_tile;      // rows of one register tile

  void (*gemm[2])(const GemmPanel&);  // by CpuFormat
  // One panel, and the depth in groups of `group`: as `gemm` with each group's scales, group after group;
  // without scales one chain through all.
  void (*gemm_groups[2])(const GemmPanel&, int64_t group);
  // Panels out of source[columns][depth] (a weight) or source[depth][columns] (straight), elements `row`
  // apart; `columns` <= panel.
  void (*pack[2])(void* panel, const void* source, int64_t row, int64_t columns, int64_t depth);
  void (*pack_straight[2])(void* panel, const void* source, int64_t row, int64_t columns, int64_t depth);

  size_t (*attention_scratch)(int positions, int group, int head_dim);
  void (*attention[2])(const AttentionTile&);

  void (*to_bf16)(BFloat16* to, const float* from, int64_t n);
  void (*to_f32)(float* to, const BFloat16* from, int64_t n);
  void (*half_to_f32)(float* to, const Float16* from, int64_t n);
  void (*add)(float* into, const float* x, float scale, int64_t n);                       // into += scale * x
  void (*rms_norm[2])(void* y, const float* x, const float* gain, float eps, int64_t n);  // by y's format
  // bias may be null
  void (*layer_norm[2])(void* y, const float* x, const float* gain, const float* bias, float eps, int64_t n);
  // Pairs of channels i and i + half, or 2i and 2i + 1.
  void (*rope)(float* x, const float* cosines, const float* sines, int64_t half);
  void (*rope_neighbours)(float* x, const float* cosines, const float* sines, int64_t half);
  // By Activation and y's format: y = act(gate) * up, y = act(x). The same bits at every level.
  void (*gated[kActivations][2])(void* y, const float* gate, const float* up, int64_t n);
  void (*activate[kActivations][2])(void* y, const float* x, int64_t n);
  void (*causal_conv)(const ConvRows&);  // the same bits at every level
  void (*delta_rule)(const DeltaHead&);
  void (*softcap)(float* x, float cap, int64_t n);  // x = cap * tanh(x / cap)
  // For tests: exp of the activations; 2^x, x <= 126, of attention.
  void (*exponential)(float* y, const float* x, int64_t n);
  void (*exponential2)(float* y, const float* x, int64_t n);

  SoftmaxSum (*softmax_sum)(const float* x, int64_t n,
                            int64_t* argmax);  // argmax may be null; lowest index among equals
  DivergenceSum (*divergence)(const float* p, const float* q, int64_t n);
  // sum[k] += |x[t][k]|, max[k] = max(max[k], |x[t][k]|) over t in order, n channels.
  void (*channel_stats[2])(double* sum, float* max, const void* x, int64_t row, int64_t rows, int64_t n);
  // kernels/common/exact_addition.h's add_run_exactly(): the same bits at every level
  bool (*add_exactly)(double* totals, double* errors, const float* values, int64_t n);
  // Rounding of one group of weights (src/quant/methods/rounding.h says the rule): the same bits at every
  // level.
  LeastMost (*least_most)(const float* w, int64_t n);
  void (*scale_channels)(float* scaled, const float* w, const float* s, int64_t n);
  // difference[k] = (code(w[k]) - zero) * scale - w[k]
  void (*round_difference)(float* difference, const float* w, int64_t n, CodeGrid grid);
  // difference[k] = (code(scaled[k]) - zero) * scale * inverse[k] - w[k]
  void (*scaled_difference)(float* difference, const float* scaled, const float* inverse, const float* w,
                            int64_t n, CodeGrid grid);
  // sum_n d[n] (2 e[n] + g[n]) in double, in a fixed order.
  double (*half_form)(const float* d, const float* e, const float* g, int64_t n);

  // Tiles of `panel` rows (kernels/common/row_tile.h): the same bits at every level.
  void (*tile_round)(const TileColumns&);
  void (*tile_descend)(const TileColumns&);
  void (*tile_solve)(const TileColumns&);
  void (*tile_try)(const TileColumns&);
  // loss[r] = sum_k importance[k] (w[k][r] - value of its code)^2; the code by a product with 1 / scale.
  void (*tile_scale_loss)(float* loss, const float* w, const float* importance, int64_t columns,
                          const float* scale, const float* zero, float top);
  void (*tile_dot)(float* sum, const float* a, const float* b,
                   int64_t columns);  // sum[r] = sum_k a[k][r] b[k][r]
  // to[k][r] = start[k][r] - factor[r] x[k][r], the product rounded; `to` may be `start`.
  void (*tile_subtract)(float* to, const float* start, const float* factor, const float* x, int64_t columns);
  // FP64: c[i][j] (+)= sum_u a[i][u] b[u][j] for j < panel_f64, a fused chain over u; rows c_row and a_row
  // apart, b [depth][panel_f64].
  int panel_f64;  // a divisor of 64
  void (*gemm_f64)(double* c, int64_t c_row, const double* a, int64_t a_row, const double* b, int64_t rows,
                   int64_t depth, bool accumulate);

  // Eight-bit activations. C of gemm_int8 is INT32 in place of FP32; one unit is 4 codes, signed in A and
  // unsigned in B, and depth a multiple of 4. Sums wrap: they are exact where the result fits.
  void (*gemm_int8)(const GemmPanel&);
  void (*pack_int8)(void* panel, const void* source, int64_t row, int64_t columns, int64_t depth);
  float (*row_scale[2])(const void* x, int64_t n, float top, float least);  // by x's format, as the next two
  int32_t (*round_int8[2])(int8_t* codes, const void* x, float scale, int64_t n);  // returns the sum
  void (*round_float8[2])(BFloat16* values, const void* x, float scale, int64_t n);
  void (*add_int8_sums)(const ScaledSums&);
  void (*add_float8_sums)(const ScaledSums&);

  // What the level does at most (kernels/cpu/ops/peak.h): operations of `steps` steps of the products above,
  // and bytes read, a multiple of 256 from an address aligned to 64; returns something of them. Null: no
  // instruction for it.
  double (*peak[2])(int64_t steps);
  double (*peak_int8)(int64_t steps);
  int32_t (*read_memory)(const void* from, size_t bytes);

  // Weights that stay in few bits, BF16 rows.
  int64_t narrow_rows;  // that share one expansion of the codes in narrow_gemm
  void (*narrow_gemm)(const NarrowProduct&);
  // Codes [first, first + count), whole units, of one group of one panel as a panel of B, and what follows
  // their sums: FP32 values (code - zero) * scale or code * scale - minimum, and nothing follows; or BF16
  // numbers code - zero, exact, the group's scales and, with minima, its offsets middle * scale - minimum.
  void (*narrow_unpack[2])(void* panel, float* scales, float* offsets, const NarrowGroup& group,
                           int64_t first, int64_t count);
  // sums[g] = sum of the g-th `group` numbers of x, in an order of the level's own.
  void (*group_sums)(float* sums, const BFloat16* x, int64_t groups, int64_t group);
  void (*nibble_gemm)(const NibbleProduct&);  // the same bits at every level
};

}  // namespace llmq
