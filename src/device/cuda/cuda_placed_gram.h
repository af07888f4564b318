// PlacedGram in the memory of a CUDA device, or of its emulation.
#pragma once
#include <memory>

#include "device/cuda/cuda_work.h"
#include "device/placed_gram.h"

namespace llmq {

// Factorizer::place(). `work` outlives it.
std::unique_ptr<PlacedGram> place_on(CudaWork& work, std::span<const double> triangle, std::int64_t channels);

}  // namespace llmq
