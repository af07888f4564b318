// The products of float4_tensor_linear.h, compiled for the sm_100 family and for no other
// (cmake/LlmqCuda.cmake).
#include "kernels/cuda/launch_device.h"
#include "kernels/cuda/launch_float4.h"
#include "kernels/cuda/tensor_memory/float4_tensor_linear.h"

namespace llmq::cuda {
namespace {

int launch_float4_tensor(const Float4Arguments& arguments, void* stream) {
  return start_float4_tensor(arguments, [&]<class Kernel>(const Float4Arguments& a) {
    return static_cast<int>(launch<Kernel>(a, static_cast<cudaStream_t>(stream)));
  });
}

}  // namespace

Float4Launch float4_from_tensor_memory() {
  return has_code<Float4TensorLinear<false, 16>>() ? launch_float4_tensor : nullptr;
}

}  // namespace llmq::cuda
