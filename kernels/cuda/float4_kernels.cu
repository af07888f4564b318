// The products of float4_linear.h, compiled for the architectures that have the instruction, and for no other
// (cmake/LlmqCuda.cmake).
#include "kernels/cuda/float4_linear.h"
#include "kernels/cuda/launch_device.h"
#include "kernels/cuda/launch_float4.h"

namespace llmq::cuda {
namespace {

int launch_float4(const Float4Arguments& arguments, void* stream) {
  return start_float4(arguments, [&]<class Kernel>(const Float4Arguments& a) {
    return static_cast<int>(launch<Kernel>(a, static_cast<cudaStream_t>(stream)));
  });
}

}  // namespace

Float4Launch float4_from_registers() { return has_code<Float4Linear<false, 1>>() ? launch_float4 : nullptr; }

}  // namespace llmq::cuda
