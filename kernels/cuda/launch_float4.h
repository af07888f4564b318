// The products of float4_linear.h and of tensor_memory/float4_tensor_linear.h as a device or the host runs
// them, beside the table of kernel_table.h, because only some architectures have the instructions. A launch
// is as in that table.
#pragma once
#include "kernels/cuda/float4_arguments.h"

namespace llmq::cuda {

using Float4Launch = int (*)(const Float4Arguments& arguments, void* stream);

// For the calling thread's device; null where this program has no machine code of them for that device
// (float4_kernels.cu or no_float4.cpp; of tensor_memory/ float4_tensor_kernels.cu or no_float4_tensor.cpp).
Float4Launch float4_from_registers();
Float4Launch float4_from_tensor_memory();
// No device has both.
inline Float4Launch float4_of_device() {
  const Float4Launch launch = float4_from_registers();
  return launch != nullptr ? launch : float4_from_tensor_memory();
}

// emulated_float4.cpp
int emulate_float4(const Float4Arguments& arguments, void* stream);
int emulate_float4_tensor(const Float4Arguments& arguments, void* stream);

}  // namespace llmq::cuda
