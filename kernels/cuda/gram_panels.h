// What GPTQ makes of a Gram matrix, an element each (device/placed_gram.h): the square that is factorized,
// and panels of columns of its factor and of itself. FP64, rounded to FP32 once.
#pragma once
#include "kernels/cuda/block.h"

namespace llmq::cuda {

// H in the order of places. `triangle` is H's by columns, rows from the diagonal on; of each place `order`
// has its column, or ~column where the diagonal counts as 1.
struct PlacedTriangle {
  const double* triangle = nullptr;
  const int32_t* order = nullptr;
  int64_t size = 0;
  double lambda = 0;  // on the diagonal

  LLMQ_BLOCK double at(int64_t i, int64_t j) const {
    int64_t row = order[i], column = order[j];
    const bool dead = i == j && row < 0;
    if (row < 0) row = ~row;
    if (column < 0) column = ~column;
    if (row > column) {
      const int64_t swapped = row;
      row = column;
      column = swapped;
    }
    const double value = dead ? 1.0 : triangle[row * (size - 1) - row * (row - 1) / 2 + column];
    return value + (i == j ? lambda : 0.0);
  }
};

// The lower triangle of a square by rows, places from last to first.
struct PlaceSquare {
  int64_t elements = 0;  // size^2
  PlacedTriangle from;
  double* square = nullptr;
  LLMQ_BLOCK void one(int64_t e) const {
    const int64_t i = e / from.size, j = e % from.size;
    if (j <= i) square[e] = from.at(from.size - 1 - j, from.size - 1 - i);
  }
};

// A lower factor of such a square, as the upper one of places in their order.
struct UpperFactor {
  const double* lower = nullptr;
  int64_t size = 0;
  LLMQ_BLOCK double at(int64_t i, int64_t j) const { return lower[(size - 1 - i) * size + (size - 1 - j)]; }
};

struct TakeDiagonal {
  int64_t elements = 0;  // size
  UpperFactor factor;
  double* diagonal = nullptr;
  LLMQ_BLOCK void one(int64_t k) const { diagonal[k] = factor.at(k, k); }
};

// A block of columns, its rows one after another: of the factor with 1 on its diagonal, and of H.
struct UnitUpperPanel {
  int64_t elements = 0, begin = 0, width = 0;
  UpperFactor factor;
  float* values = nullptr;
  LLMQ_BLOCK void one(int64_t e) const {
    const int64_t i = e / width, j = begin + e % width;
    values[e] = i > j ? 0.0f : static_cast<float>(factor.at(i, j) / factor.at(j, j));
  }
};

struct SquarePanel {
  int64_t elements = 0, begin = 0, width = 0;
  PlacedTriangle from;
  float* values = nullptr;
  LLMQ_BLOCK void one(int64_t e) const {
    values[e] = static_cast<float>(from.at(e / width, begin + e % width));
  }
};

}  // namespace llmq::cuda
