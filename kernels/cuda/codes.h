// Linears whose inputs are rounded to 8 bits, in the arithmetic of device/low_precision.h: RoundInputs turns rows into codes and scales,
// MultiplyCodes multiplies codes and applies the scales. INT8 sums are exact; those of E4M3 are FP32 chains over k in order.
#pragma once
#include "kernels/common/code_value.h"
#include "kernels/cuda/rows.h"

namespace llmq::cuda {

// A block rounds one group of one row's columns to `codes` [rows, columns] and writes its scale [rows, groups].
struct RoundInputs {
  struct Arguments {
    int64_t rows = 0, columns = 0, group = 1;
    Rows x;
    uint8_t* codes = nullptr;
    float* scales = nullptr;
    float top = kInt8Top, least = 0;
    float fixed = 0;  // a calibrated scale; 0: none
    bool float8 = false;
    LLMQ_BLOCK float scale_of(float greatest) const {
      if (!isfinite(greatest)) return NAN;
      if (fixed != 0) return fixed;
      const float scale = greatest / top;
      return scale == 0 ? least : scale;
    }
    LLMQ_BLOCK uint8_t code_of(float steps) const {
      if (float8) return to_float8(steps).bits;
      return static_cast<uint8_t>(static_cast<int8_t>(rintf(fminf(fmaxf(steps, -128.0f), 127.0f))));
    }
  };
  struct Shared {
    RowValues<float> greatest;
  };
  static constexpr int kThreads = kRowThreads;
  static Grid grid(const Arguments& a) { return {a.rows, static_cast<int>(blocks_for(a.columns, a.group))}; }

  // The greater of two magnitudes; what is not finite counts as infinite.
  static LLMQ_BLOCK float greater(float a, float b) { return isfinite(a) && isfinite(b) ? fmaxf(a, b) : INFINITY; }

  static LLMQ_BLOCK void run(RowBlock& block, const Arguments& a, Shared& shared) {
    const int64_t row = block.x, first = block.y * a.group, end = first + a.group < a.columns ? first + a.group : a.columns;
    block.each([&](int thread) {
      float greatest = 0;
      for (int64_t k = first + thread; k < end; k += kThreads) greatest = greater(greatest, fabsf(a.x.get(row, k)));
      shared.greatest.set(thread, thread, greatest);
    });
    block.barrier();
    fold_halves(block, shared.greatest, [](float x, float y) { return greater(x, y); });
    block.each([&](int thread) {
      const float scale = a.scale_of(shared.greatest.get(thread, 0));
      if (thread == 0) a.scales[row * blocks_for(a.columns, a.group) + block.y] = scale;
      for (int64_t k = first + thread; k < end; k += kThreads) a.codes[row * a.columns + k] = a.code_of(a.x.get(row, k) / scale);
    });
  }
};

// One row m and one output n for each thread; a block has 16 x 16 of them.
struct MultiplyCodes {
  struct Arguments {
    int64_t rows = 0, columns = 0, depth = 0, group = 1, groups = 1;
    float* y = nullptr;
    int64_t y_row = 0;
    const uint8_t* x = nullptr;       // codes [rows, depth]
    const float* x_scales = nullptr;  // [rows, x_groups]
    int64_t x_groups = 1;             // 1 or groups
    const uint8_t* codes = nullptr;   // [columns, depth]
    const float* scales = nullptr;    // [columns, groups]
    const uint8_t* zeros = nullptr;
    const float* bias = nullptr;
    bool float8 = false;
    bool in_token_groups = false;
  };
  struct Shared {};
  static constexpr int kThreads = 256, kTile = 16;
  static Grid grid(const Arguments& a) { return {blocks_for(a.columns, kTile), static_cast<int>(blocks_for(a.rows, kTile))}; }

  static LLMQ_BLOCK float sum_of_group(const Arguments& a, int64_t m, int64_t n, int64_t g) {
    const int64_t end = (g + 1) * a.group < a.depth ? (g + 1) * a.group : a.depth;
    const uint8_t* const x = a.x + m * a.depth;
    const uint8_t* const codes = a.codes + n * a.depth;
    if (a.float8) {
      float sum = 0;
      for (int64_t k = g * a.group; k < end; ++k) sum = fmaf(to_float(Float8{x[k]}), to_float(Float8{codes[k]}), sum);
      return sum;
    }
    int32_t sum = 0;
    const int32_t zero = a.zeros[n * a.groups + g];
    for (int64_t k = g * a.group; k < end; ++k) sum += static_cast<int8_t>(x[k]) * (static_cast<int32_t>(codes[k]) - zero);
    return static_cast<float>(sum);
  }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared&) {
    block.each([&](int thread) {
      const int64_t m = int64_t{block.y} * kTile + thread / kTile, n = int64_t{block.x} * kTile + thread % kTile;
      if (m >= a.rows || n >= a.columns) return;
      float total = 0;
      for (int64_t g = 0; g < a.groups; ++g) {
        float sum = sum_of_group(a, m, n, g);
        if (a.in_token_groups) sum *= a.x_scales[m * a.x_groups + g];
        const float scale = a.scales[n * a.groups + g];
        total = g == 0 ? sum * scale : fmaf(sum, scale, total);
      }
      const float factor = a.in_token_groups ? 1.0f : a.x_scales[m];
      a.y[m * a.y_row + n] = a.bias == nullptr ? total * factor : fmaf(total, factor, a.bias[n]);
    });
  }
};

}  // namespace llmq::cuda
