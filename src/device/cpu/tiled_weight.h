// Products with a BF16 weight in oneDNN's tiles (kernels/cpu/weight_tiles.h): what the level "amx" does
// instead of panels.
#pragma once
#include <memory>
#include <vector>

#include "device/cpu/packed_weight.h"
#include "kernels/cpu/weight_tiles.h"

namespace llmq {

class TiledWeight final : public PreparedWeight {
 public:
  const CpuKernels* kernels = nullptr;
  std::int64_t group_columns = 0;                    // of every group but the last
  std::vector<std::unique_ptr<WeightTiles>> groups;  // of neighbouring columns
};

std::unique_ptr<TiledWeight> tile_weight(const CpuWork& work, const TensorView& weight);
void multiply(const CpuWork& work, const TensorView& y, const TensorView& x, const TiledWeight& w,
              const float* bias);
void evaluate_form(const CpuWork& work, std::span<double> loss, const TensorView& d, const TiledWeight& g);

}  // namespace llmq
