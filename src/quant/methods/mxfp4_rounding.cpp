#include "quant/methods/mxfp4_rounding.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tensor/mxfp4.h"

namespace llmq {
namespace {

struct RoundedBlock {
  std::array<std::uint8_t, kMxfp4Block> codes;
  float scale = 0;
  double lost = 0;
};

RoundedBlock rounded_by(std::span<const float> weight, float scale) {
  RoundedBlock block;
  block.scale = scale;
  for (std::size_t k = 0; k < weight.size(); ++k) {
    block.codes[k] = e2m1_code(weight[k] / scale);
    const double off = static_cast<double>(kE2M1[block.codes[k]]) * scale - weight[k];
    block.lost += off * off;
  }
  return block;
}

RoundedBlock round_block(std::span<const float> weight) {
  float largest = 0;
  for (const float value : weight) largest = std::max(largest, std::fabs(value));
  if (largest == 0) return rounded_by(weight, mxfp4_scale(0));
  const int ocp = std::ilogb(largest) - 2 + 127;
  const auto with_byte = [&](int byte) {
    return rounded_by(weight, mxfp4_scale(static_cast<std::uint8_t>(std::clamp(byte, 0, 254))));
  };
  RoundedBlock best = with_byte(ocp);
  for (const int byte : {ocp + 1, ocp - 1})
    if (const RoundedBlock other = with_byte(byte); other.lost < best.lost) best = other;
  return best;
}

}  // namespace

QuantizedMatrix round_mxfp4(std::span<const float> weight, std::int64_t rows, std::int64_t columns,
                            const QuantScheme& scheme, ThreadPool& pool) {
  QuantizedMatrix matrix;
  matrix.scheme = scheme;
  matrix.out_features = rows;
  matrix.in_features = columns;
  const auto groups = static_cast<std::size_t>(matrix.groups());
  matrix.codes.resize(weight.size());
  matrix.scales.resize(static_cast<std::size_t>(rows) * groups);
  matrix.zeros.resize(matrix.scales.size());
  pool.parallel_for(static_cast<std::size_t>(rows), [&](std::size_t row, int) {
    for (std::size_t g = row * groups; g < (row + 1) * groups; ++g) {
      const RoundedBlock block = round_block(weight.subspan(g * kMxfp4Block, kMxfp4Block));
      matrix.scales[g] = block.scale;
      std::copy(block.codes.begin(), block.codes.end(),
                matrix.codes.begin() + static_cast<std::ptrdiff_t>(g * kMxfp4Block));
    }
  });
  return matrix;
}

}  // namespace llmq
