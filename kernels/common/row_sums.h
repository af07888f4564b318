// Sums over sampled rows of inputs and of weights, as SmoothQuant's search takes them
// (quant/methods/smoothquant/smooth_loss.h): what one number or one row gives is written here, for the host,
// which takes a row at a time (quant/methods/smoothquant/sampled_rows.cpp), and for devices, which take all
// (kernels/cuda/row_sums.h).
//
//   input errors   sum_k weight_k (s_k Q(x_k / s_k) - x_k)^2 over the columns of one step, Q rounding to 8
//                  bits with step = max_k |x_k / s_k| / top, or a given one for all rows
//   squares        sum_k weight_k x_k^2
//   soft rows      v_k = |x_k| factor_k, whole = sum_k (v_k / max v)^16: the row's energy = weight (max v
//                  whole^(1/16))^2, part = energy / whole
//   shares         share_k = sum_r part_r (v_rk / max_j v_rj)^16
//
// Sums over a row's columns stand in kSumLanes lanes: lane l adds l, l + kSumLanes, ... in order, then
// sum_of_lanes(). Sums over rows are of kRowsTogether rows in order, then of those sums in order. FP64 sums,
// no transcendental functions: the same bits wherever they are made.
#pragma once
#include <stdint.h>

#include "kernels/common/tile_arithmetic.h"

namespace llmq {

inline constexpr int kSumLanes = 8, kRowsTogether = 32;

LLMQ_ANYWHERE double sum_of_lanes(const double* sums) {
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// What is not a number is never the greater.
template <class T>
LLMQ_ANYWHERE T greater_of(T most, T value) {
  return most < value ? value : most;
}

LLMQ_ANYWHERE float scaled_magnitude(float x, float inverse) { return __builtin_fabsf(x * inverse); }

struct InputStep {
  float scale, per;

  LLMQ_ANYWHERE static InputStep of(float scale, float least) {
    scale = scale == 0 ? least : scale;
    return {scale, 1.0f / scale};
  }
};

// s Q(x / s) - x.
template <bool kFloat8>
LLMQ_ANYWHERE double input_error(float x, float s, float inverse, InputStep step) {
  const float steps = x * inverse * step.per;
  float code = 0;
  if constexpr (kFloat8) {
    code = to_float(to_float8(steps));
  } else {
    const float low = steps < -128.0f ? -128.0f : steps;
    code = nearest<OneRow>(127.0f < low ? 127.0f : low);
  }
  return static_cast<double>(code * step.scale * s - x);
}

LLMQ_ANYWHERE double weighted_square(double value, double weight) { return value * value * weight; }

LLMQ_ANYWHERE double soft_value(float x, double factor) {
  return __builtin_fabs(static_cast<double>(x)) * factor;
}

// (v / most)^16, of inverse = inverse_of_most(most).
LLMQ_ANYWHERE double soft_power(double v, double inverse) {
  const double r = v * inverse, r2 = r * r, r4 = r2 * r2, r8 = r4 * r4;
  return r8 * r8;
}
LLMQ_ANYWHERE double inverse_of_most(double most) { return most > 0 ? 1 / most : 0; }

struct SoftRow {
  double inverse, energy, part;  // inverse: of the row's largest v
};
LLMQ_ANYWHERE SoftRow soft_row(double most, double whole, double weight) {
  if (!(most > 0)) return {0, 0, 0};
  const double value = most * __builtin_sqrt(__builtin_sqrt(__builtin_sqrt(__builtin_sqrt(whole)))),
               energy = weight * value * value;
  return {inverse_of_most(most), energy, energy / whole};
}

// As arguments of kernels: rows are [rows][columns], pointers the device's.
struct InputErrors {
  int64_t rows = 0, columns = 0, group = 1;  // columns of one step
  const float* x = nullptr;
  const float* s = nullptr;  // per column
  const float* inverse = nullptr;
  const double* weight = nullptr;
  double* sums = nullptr;  // [rows][groups]
  float top = 127.5f, least = 0;
  float scale = 0;  // of all rows, where one_scale
  bool one_scale = false, float8 = false;
};
struct RowSquares {
  int64_t rows = 0, columns = 0;
  const float* x = nullptr;
  const double* weight = nullptr;  // per column
  double* sums = nullptr;          // per row
};
struct SoftRows {
  int64_t rows = 0, columns = 0;
  const float* x = nullptr;
  const double* factor = nullptr;  // per column
  const double* weight = nullptr;  // per row
  SoftRow* soft = nullptr;         // per row
};
struct ColumnShares {
  SoftRows rows;
  double* share = nullptr;  // per column
};

}  // namespace llmq
