#include "tests/bench/dequantize4.h"

#include "kernels/cuda/launch_device.h"

namespace llmq::cuda {

int launch_dequantize4(const Dequantize4& codes, void* stream) {
  return static_cast<int>(launch<Each<Dequantize4>>(codes, static_cast<cudaStream_t>(stream)));
}

}  // namespace llmq::cuda
