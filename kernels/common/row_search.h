// What a device does for the groups of many rows at once, as arguments of kernels: arrays are [columns][rows]
// of one group and lie in the device's memory; kernels/common/scale_search.h has the rules.
#pragma once
#include <stdint.h>

#include "kernels/common/row_tile.h"
#include "kernels/common/scale_search.h"

namespace llmq {

struct RowGrids {  // one of each per row
  float* scale = nullptr;
  float* zero = nullptr;
};

// found = the candidate with the least sum over k of importance[k] (v_k - value of v_k)^2, v = weight -
// difference.
struct RangeSearch {
  int64_t columns = 0;
  const float* weight = nullptr;
  const float* difference = nullptr;  // or null: v = weight
  const float* importance = nullptr;  // per column
  RowGrids found;
  RangeCandidates candidates;
};

// found = the trial around columns.scale and columns.zero (of one group: columns.group is null) with the
// least loss, as host_tile_try() has it.
struct TrialSearch {
  TileColumns columns;    // at most 128
  RowGrids found;         // may be where it starts from
  float* loss = nullptr;  // written: the least; or null
  ScaleTrials trials{};
  GridRule rule;
};

// What a group is rounded to again: target += steps scale; before, loss = y . target.
struct GroupTarget {
  int64_t columns = 0;
  const float* y = nullptr;
  const float* steps = nullptr;
  const float* scale = nullptr;  // per row
  float* target = nullptr;       // in: y G^-1
  float* loss = nullptr;         // per row
};

// Where tried_loss < loss the group takes what was tried; spent = by how much its differences grow, 0 where
// it does not.
struct GroupChoice {
  int64_t columns = 0;
  const float* weight = nullptr;
  const float* tried_steps = nullptr;
  RowGrids tried, grid;
  const float* tried_loss = nullptr;
  const float* loss = nullptr;
  float* steps = nullptr;
  float* difference = nullptr;
  float* spent = nullptr;
};

// Scale and then zero (where the rule is asymmetric) for codes that stand.
struct GroupRefit {
  int64_t columns = 0;
  const float* weight = nullptr;
  const float* row_sum = nullptr;  // of G over the group, per column
  const float* u = nullptr;        // steps G
  float* y = nullptr;              // difference G; follows
  float* steps = nullptr;
  float* difference = nullptr;
  RowGrids grid;
  GridRule rule;
};

// Weights of rows as places of columns, and the codes back. column[place] of the weight; ~column where no
// input uses it: its weights are 0, its codes the zero.
struct PlacedColumns {
  int64_t columns = 0;
  const int32_t* column = nullptr;
};
struct PlacedCodes {
  PlacedColumns places;
  const float* steps = nullptr;    // [places][rows]
  const float* zero = nullptr;     // [groups][rows]
  const int32_t* group = nullptr;  // by place
  uint8_t* codes = nullptr;        // [rows][columns]
};

}  // namespace llmq
