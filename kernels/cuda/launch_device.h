// Starts a kernel of kernels/cuda/block.h on a stream. Nothing to do is no launch.
#pragma once
#include <cuda_runtime_api.h>

#include "kernels/cuda/block.h"

namespace llmq::cuda {

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, 1) run_block(const typename Kernel::Arguments arguments) {
  __shared__ typename Kernel::Shared shared;
  Block<Kernel::kThreads> block{static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z)};
  Kernel::run(block, arguments, shared);
}

template <class Kernel>
cudaError_t launch(const typename Kernel::Arguments& arguments, cudaStream_t stream) {
  const Grid grid = Kernel::grid(arguments);
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return cudaSuccess;
  run_block<Kernel><<<dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z)), Kernel::kThreads, 0,
                      stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace llmq::cuda
