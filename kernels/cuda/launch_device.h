// Starts a kernel of kernels/cuda/block.h on a stream. Nothing to do is no launch.
#pragma once
#include <cuda_runtime_api.h>

#include "kernels/cuda/block.h"

namespace llmq::cuda {

constexpr std::size_t kStaticShared = 48 * 1024;  // more has to be asked for at the launch

// Blocks that a processor holds at once, which its registers must suffice for: a kernel's kTogether where
// there is room for them: sm_90 to sm_110; the processors of sm_120 hold 1,536 threads.
template <class Kernel>
constexpr int blocks_together() {
  int blocks = 1;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
  if constexpr (requires { Kernel::kTogether; }) blocks = Kernel::kTogether;
#endif
  return blocks;
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, blocks_together<Kernel>())
    run_block(const typename Kernel::Arguments arguments) {
  Block<Kernel::kThreads> block{static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y),
                                static_cast<int>(blockIdx.z)};
  if constexpr (sizeof(typename Kernel::Shared) <= kStaticShared) {
    __shared__ typename Kernel::Shared shared;
    Kernel::run(block, arguments, shared);
  } else {
    extern __shared__ uint4 asked_for[];
    Kernel::run(block, arguments, *reinterpret_cast<typename Kernel::Shared*>(asked_for));
  }
}

// Bytes of shared memory that a block may have on the calling thread's device.
inline int64_t most_shared() {
  int device = 0, bytes = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
    return kStaticShared;
  return bytes;
}

// Whether this program has machine code of a kernel for the calling thread's device.
template <class Kernel>
bool has_code() {
  cudaFuncAttributes attributes{};
  const cudaError_t found = cudaFuncGetAttributes(&attributes, run_block<Kernel>);
  cudaGetLastError();  // that there is none is an answer, and nobody else's error
  return found == cudaSuccess;
}

template <class Kernel>
cudaError_t launch(const typename Kernel::Arguments& arguments, cudaStream_t stream) {
  constexpr std::size_t kShared = sizeof(typename Kernel::Shared),
                        kAskedFor = kShared <= kStaticShared ? 0 : kShared;
  const Grid grid = Kernel::grid(arguments);
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return cudaSuccess;
  if constexpr (kAskedFor != 0) {
    const cudaError_t error = cudaFuncSetAttribute(
        run_block<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kAskedFor));
    if (error != cudaSuccess) return error;
  }
  run_block<Kernel>
      <<<dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z)),
         Kernel::kThreads, kAskedFor, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace llmq::cuda
