// The products of float4_linear.h as a device or the host runs them, beside the table of kernel_table.h,
// because only some architectures have the instruction. A launch is as in that table.
#pragma once
#include "kernels/cuda/float4_arguments.h"

namespace llmq::cuda {

using Float4Launch = int (*)(const Float4Arguments& arguments, void* stream);

// For the calling thread's device; null where this program has no machine code of it for that device
// (float4_kernels.cu, or no_float4.cpp).
Float4Launch float4_of_device();
int emulate_float4(const Float4Arguments& arguments, void* stream);  // emulated_float4.cpp

}  // namespace llmq::cuda
