// Rows of a weight side by side, as many as one panel of the CPU's products holds: element (column, row) lies
// at column * rows + row, so that a row is one lane, its arithmetic does not depend on the rows beside it,
// and the same bits come out at every instruction set.
#pragma once
#include <stdint.h>

namespace llmq {

// What the columns of a block do one after another, all arrays [columns][rows] but where said:
//   v_k = carried_k, from which a step makes an error e_k;  carried_j += e_k factors[k][j] for j > k
//   round:   e = w - (w + carried rounded);        writes steps, difference (which is e)
//   descend: e = old value - new value, new steps = nearest of old value + carried * inverse[k];
//            writes steps, difference
//   solve:   e = -carried;  writes difference
//   try:     as round, but writes nothing; loss[row] += cost[k] (v_k - value)^2
struct TileColumns {
  int64_t columns = 0;
  const float* factors = nullptr;  // [columns][factor_row]
  int64_t factor_row = 0;
  float* carried = nullptr;
  const float* weight = nullptr;
  float* steps = nullptr;        // code - zero
  float* difference = nullptr;   // w - steps * scale
  const float* scale = nullptr;  // [groups][rows]
  const float* zero = nullptr;
  const int32_t* group = nullptr;  // of each column
  const float* inverse = nullptr;  // descend: 1 / H_kk per column
  const float* cost = nullptr;     // try: per column
  float* loss = nullptr;           // try: per row
  float top = 15;
};

}  // namespace llmq
