// A weight laid out as a warp's matrix products take it: what one lane multiplies lies side by side, so that
// a kernel copies it 16 bytes at a time and unpacks nothing across lanes.
//
// Columns are positions first: each group starts at a multiple of a product's depth (16; 32 of INT8, 64 of
// E2M1 by E2M1), the places behind its last column are padding. A tile is 16 features x 64 positions; its
// 1024 elements are 32 per lane, in the order
//   product of the tile, feature / 8 % 2, then the elements of operand B as the lane holds them,
// each of `bits` bits (4, 8 or 16), lower bits first: `bits` words per lane. Of 4 bits, the two of a pair lie
// 16 bits apart: elements 0, 2, 4, 6, 1, 3, 5, 7 of a word, so that one mask takes a pair. Tiles of a feature
// row follow one another along the positions; features are padded to 64. Padding must be something finite:
// inputs are 0 there.
#pragma once
#include <stdint.h>

#include "kernels/common/code_value.h"

namespace llmq {

struct FragmentPlace {
  int64_t word;  // of 32 bits
  int shift;
};
struct FragmentElement {
  int64_t feature, position;
};

struct FragmentLayout {
  int64_t features = 0, columns = 0, group = 0;  // group: columns of one scale, at most all of them
  int bits = 16, product_depth = 16;

  static constexpr int64_t kTileFeatures = 16, kTilePositions = 64, kFeatureMultiple = 64;

  LLMQ_HOST_DEVICE constexpr int64_t padded_features() const {
    return (features + kFeatureMultiple - 1) / kFeatureMultiple * kFeatureMultiple;
  }
  LLMQ_HOST_DEVICE constexpr int64_t groups() const { return (columns + group - 1) / group; }
  LLMQ_HOST_DEVICE constexpr int64_t padded_group() const {
    return (group + product_depth - 1) / product_depth * product_depth;
  }
  LLMQ_HOST_DEVICE constexpr int64_t position(int64_t column) const {
    return column / group * padded_group() + column % group;
  }
  // Positions up to the last column, rounded to whole tiles.
  LLMQ_HOST_DEVICE constexpr int64_t positions() const {
    return (position(columns - 1) + kTilePositions) / kTilePositions * kTilePositions;
  }
  LLMQ_HOST_DEVICE constexpr int64_t words() const { return padded_features() * positions() / 32 * bits; }

  LLMQ_HOST_DEVICE constexpr FragmentPlace place(int64_t feature, int64_t column) const {
    const int64_t p = position(column), half = product_depth / 2, quarter = half / 4,
                  each = product_depth / 4;
    const int64_t tile = feature / kTileFeatures * (positions() / kTilePositions) + p / kTilePositions;
    const int64_t lane = feature % 8 * 4 + p % half / quarter;
    const int64_t element = (p % kTilePositions / product_depth * 2 + feature % kTileFeatures / 8) * each +
                            p % product_depth / half * quarter + p % quarter;
    const int64_t slot = element % (32 / bits);
    return {(tile * 32 + lane) * bits + element * bits / 32,
            static_cast<int>(bits == 4 ? nibble_shift(slot) : slot * bits)};
  }
  // Where the i-th of a word's codes of 4 bits lies.
  LLMQ_HOST_DEVICE static constexpr int nibble_shift(int64_t i) {
    return static_cast<int>(i / 2 * 4 + i % 2 * 16);
  }
  // The other way: what lies at bits i * bits of a word.
  LLMQ_HOST_DEVICE constexpr FragmentElement element(int64_t word, int i) const {
    const int64_t half = product_depth / 2, quarter = half / 4, each = product_depth / 4,
                  tiles = positions() / kTilePositions;
    const int64_t tile = word / (32 * bits), lane = word / bits % 32,
                  e = word % bits * (32 / bits) + (bits == 4 ? i % 4 * 2 + i / 4 : i);
    return {tile / tiles * kTileFeatures + e / each % 2 * 8 + lane / 4,
            tile % tiles * kTilePositions + e / (2 * each) * product_depth + e % each / quarter * half +
                lane % 4 * quarter + e % quarter};
  }
};

}  // namespace llmq
