// Every table of kernels this processor runs, and test inputs.
#pragma once
#include <random>
#include <vector>

#include "kernels/cpu/level.h"

namespace llmq::testing {

inline std::vector<const CpuKernels*> present_levels() {
  std::vector<const CpuKernels*> levels;
  for (const CpuKernels* level : {scalar_level(), avx2_level(), avx512_plain_level(), avx512_level(),
                                  amx_emulated_level(), amx_level()})
    if (level != nullptr && (levels.empty() || levels.back() != level)) levels.push_back(level);
  return levels;
}

inline std::vector<float> normal_values(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

}  // namespace llmq::testing
