// What a CUDA device does at most (device/device_peaks.h), by the loops of kernels/cuda/peak.h. About 0.1 s
// each.
#pragma once
#include "device/cuda/cuda_device.h"
#include "device/machine_peaks.h"

namespace llmq {

double measure_cuda_reading(CudaDevice& device);
double measure_cuda_products(CudaDevice& device, ArithmeticKind kind);

}  // namespace llmq
