// What stands in for float4_kernels.cu in a build for other architectures.
#include "kernels/cuda/launch_float4.h"

namespace llmq::cuda {

Float4Launch float4_from_registers() { return nullptr; }

}  // namespace llmq::cuda
