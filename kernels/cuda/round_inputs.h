// Inputs of linears to 8 bits, in the arithmetic of device/low_precision.h, as linear.h takes them: INT8
// codes at the positions of the weight's groups (0 at the padding, which the caller cleared), or E4M3 values
// as BF16; and to floats in groups, as BF16 or, of 4 bits, as codes.
#pragma once
#include "kernels/common/code_value.h"
#include "kernels/common/float_groups.h"
#include "kernels/common/fragment_layout.h"
#include "kernels/cuda/rows.h"

namespace llmq::cuda {

// A block rounds one group of one row's columns and writes its scale [rows, groups].
struct RoundInputs {
  struct Arguments {
    int64_t rows = 0, columns = 0, group = 1;  // columns of one scale
    Rows x;
    float* scales = nullptr;
    float top = kInt8Top, least = 0;
    float fixed = 0;           // a calibrated scale; 0: none
    BFloat16* e4m3 = nullptr;  // [rows, columns], or:
    int8_t* codes = nullptr;   // [rows, positions]
    // column k is at k / weight_group * padded_group + k % weight_group
    int64_t positions = 0, weight_group = 1, padded_group = 1;
    LLMQ_BLOCK float scale_of(float greatest) const {
      if (!isfinite(greatest)) return NAN;
      if (fixed != 0) return fixed;
      const float scale = greatest / top;
      return scale == 0 ? least : scale;
    }
    LLMQ_BLOCK void put(int64_t row, int64_t k, float steps) const {
      if (e4m3 != nullptr)
        e4m3[row * columns + k] = to_bfloat16(to_float(to_float8(steps)));
      else
        codes[row * positions + k / weight_group * padded_group + k % weight_group] =
            static_cast<int8_t>(rintf(fminf(fmaxf(steps, -128.0f), 127.0f)));
    }
  };
  struct Shared {
    RowValues<float> greatest;
  };
  static constexpr int kThreads = kRowThreads;
  static Grid grid(const Arguments& a) { return {a.rows, static_cast<int>(blocks_for(a.columns, a.group))}; }

  // The greater of two magnitudes; what is not finite counts as infinite.
  static LLMQ_BLOCK float greater(float a, float b) {
    return isfinite(a) && isfinite(b) ? fmaxf(a, b) : INFINITY;
  }

  static LLMQ_BLOCK void run(RowBlock& block, const Arguments& a, Shared& shared) {
    const int64_t row = block.x, first = block.y * a.group,
                  end = first + a.group < a.columns ? first + a.group : a.columns;
    block.each([&](int thread) {
      float greatest = 0;
      for (int64_t k = first + thread; k < end; k += kThreads)
        greatest = greater(greatest, fabsf(a.x.get(row, k)));
      shared.greatest.set(thread, thread, greatest);
    });
    block.barrier();
    fold_halves(block, shared.greatest, [](float x, float y) { return greater(x, y); });
    block.each([&](int thread) {
      const float scale = a.scale_of(shared.greatest.get(thread, 0));
      if (thread == 0) a.scales[row * blocks_for(a.columns, a.group) + block.y] = scale;
      for (int64_t k = first + thread; k < end; k += kThreads) a.put(row, k, a.x.get(row, k) / scale);
    });
  }
};

// An element is a (row, group of the weight): the exact sum of its codes.
struct SumCodes {
  int64_t elements = 0, groups = 1, positions = 0, padded_group = 1;
  const int8_t* codes = nullptr;
  int32_t* sums = nullptr;
  LLMQ_BLOCK void one(int64_t i) const {
    const int64_t row = i / groups, first = i % groups * padded_group,
                  end = first + padded_group < positions ? first + padded_group : positions;
    int32_t sum = 0;
    for (int64_t p = first; p < end; ++p) sum += codes[row * positions + p];
    sums[i] = sum;
  }
};

// An element is a (row, group of columns): code * level. The first of a row writes what its sums are
// multiplied by.
struct RoundInputGroups {
  int64_t elements = 0, groups = 1, columns = 0;
  Rows x;
  InputGroups how;
  float factor = 1;
  BFloat16* to = nullptr;   // [rows, columns]
  float* scales = nullptr;  // [rows]
  LLMQ_BLOCK void one(int64_t i) const {
    const int64_t row = i / groups, first = i % groups * how.size, left = columns - first;
    const int count = left < how.size ? static_cast<int>(left) : how.size;
    float values[InputGroups::kMostInGroup];
    for (int k = 0; k < count; ++k) values[k] = x.get(row, first + k);
    round_input_group(how, values, count);
    for (int k = 0; k < count; ++k) to[row * columns + first + k] = to_bfloat16(values[k]);
    if (first == 0) scales[row] = factor;
  }
};

// An element is a (row, group of positions): codes and the byte of their scale, as float4_arguments.h has
// them. Groups go on to the last position; beyond the columns inputs are 0.
struct RoundInputCodes {
  int64_t elements = 0, groups = 1, columns = 0, padded_rows = 0;
  Rows x;
  InputGroups how;                 // of E2M1
  uint32_t* codes = nullptr;       // [rows][groups * how.size / 8]
  uint8_t* scale_bytes = nullptr;  // [groups / 4, rounded up][padded_rows][4]
  LLMQ_BLOCK void one(int64_t i) const {
    const int64_t row = i / groups, group = i % groups, first = group * how.size, left = columns - first;
    const int count = left < 0 ? 0 : left < how.size ? static_cast<int>(left) : how.size;
    float values[InputGroups::kMostInGroup];
    for (int k = 0; k < count; ++k) values[k] = x.get(row, first + k);
    const InputLevel shared = input_level(how, values, count);
    for (int word = 0; word < how.size / 8; ++word) {
      uint32_t codes_of_word = 0;
      for (int e = 0; e < 8 && word * 8 + e < count; ++e)
        codes_of_word |= nearest_e2m1(values[word * 8 + e] / shared.scale) << FragmentLayout::nibble_shift(e);
      codes[i * (how.size / 8) + word] = codes_of_word;
    }
    scale_bytes[(group / 4 * padded_rows + row) * 4 + group % 4] = static_cast<uint8_t>(shared.byte);
  }
};

}  // namespace llmq::cuda
