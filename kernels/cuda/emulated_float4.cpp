// The products of float4_linear.h and tensor_memory/float4_tensor_linear.h as the host emulates them.
#include "kernels/cuda/float4_linear.h"
#include "kernels/cuda/launch_emulated.h"
#include "kernels/cuda/launch_float4.h"
#include "kernels/cuda/tensor_memory/float4_tensor_linear.h"

namespace llmq::cuda {

int emulate_float4(const Float4Arguments& arguments, void*) {
  return start_float4(arguments, [&]<class Kernel>(const Float4Arguments& a) {
    emulate<Kernel>(a);
    return 0;
  });
}
int emulate_float4_tensor(const Float4Arguments& arguments, void*) {
  return start_float4_tensor(arguments, [&]<class Kernel>(const Float4Arguments& a) {
    emulate<Kernel>(a);
    return 0;
  });
}

}  // namespace llmq::cuda
