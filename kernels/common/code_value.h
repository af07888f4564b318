// What a code means. Quantizers, the reference, every kernel, reader and writer go through this line and no
// other.
//
//   value = (code - zero) * scale      in FP32; code and zero are small integers, so the difference is exact
//                                      and the product is rounded once.
//
// Values that are rounded to INT8 by their magnitude alone (inputs of linears, keys and values) have scale =
// max|x| / kInt8Top, codes clamped to -128 .. 127, compressed-tensors' convention; to E4M3, max|x| /
// kFloat8Top (base/half.h).
#pragma once

namespace llmq {

#ifdef __CUDACC__
#define LLMQ_HOST_DEVICE __host__ __device__
#else
#define LLMQ_HOST_DEVICE
#endif

inline constexpr float kInt8Top = 127.5f;

LLMQ_HOST_DEVICE inline __attribute__((always_inline)) float code_value(int code, int zero, float scale) {
  return static_cast<float>(code - zero) * scale;
}

}  // namespace llmq
