// A Cholesky factor in a device's memory: the triangle goes up, and comes back, in bands of rows of a square.
#pragma once
#include "device/cuda/cuda_device.h"
#include "device/factorizer.h"

namespace llmq {

// Factorizer::factorize() by the device's library, device.cholesky(). Rows are packed by the pool.
std::unique_ptr<DeviceFactor> factorize_on(CudaDevice& device, const LowerTriangle& matrix, ThreadPool& pool);

}  // namespace llmq
