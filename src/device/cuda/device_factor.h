// A Cholesky factor in a device's memory: the triangle goes up, and comes back, in bands of rows of a square.
#pragma once
#include "device/cuda/cuda_device.h"
#include "device/factorizer.h"

namespace llmq {

// Factorizer::factorize() by the device's library, device.cholesky(). Rows are packed by the pool.
std::unique_ptr<DeviceFactor> factorize_on(CudaDevice& device, const LowerTriangle& matrix, ThreadPool& pool);

// Room for `bytes` of the factor of so many channels. Error(kResource) that says what it was for.
Buffer room_for_factor(CudaDevice& device, std::uint64_t bytes, std::int64_t channels);
// The lower triangle of [size, size], by rows, becomes its Cholesky factor. False where a pivot is not
// positive.
bool factor_square(CudaDevice& device, double* square, std::int64_t size);

}  // namespace llmq
