// What a code means. Quantizers, the reference, every kernel, reader and writer go through this line and no other.
//
//   value = (code - zero) * scale      in FP32; code and zero are small integers, so the difference is exact and the product
//                                      is rounded once.
#pragma once

namespace llmq {

#ifdef __CUDACC__
#define LLMQ_HOST_DEVICE __host__ __device__
#else
#define LLMQ_HOST_DEVICE
#endif

LLMQ_HOST_DEVICE inline __attribute__((always_inline)) float code_value(int code, int zero, float scale) {
  return static_cast<float>(code - zero) * scale;
}

}  // namespace llmq
