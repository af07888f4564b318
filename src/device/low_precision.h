// The arithmetic of linears whose inputs are rounded to 8 or 4 bits: the one definition that all backends
// share.
//
//   scale(m)   = max|x[m]| / top, top = input_top(type of the weights); 2^-23 where that is 0
//              (compressed-tensors' rule); a calibrated number per
//                tensor; in token groups one for each 128 columns. NaN where the row (the group) holds a NaN
//                or an infinity.
//   INT8:        a[m, k] = round(clamp(x / scale, -128, 127)), ties to even
//                S[m, n, g] = sum over group g of a (code - zero), exact in INT32
//                y[m, n] = sum_g float(S) s(n, g), then * scale(m), then + bias[n]
//   E4M3:        a[m, k] = E4M3 nearest to clamp(x / scale, -448, 448), ties to even S[m, n, g] = sum over
//                group g of a e4m3(code): products exact, sums in FP32 y[m, n] = sum_g S s(n, g), then *
//                scale(m), then + bias[n]; in token groups sum_g (S scale(m, g)) s(n, g), then + bias[n]
//   floats in groups (NVFP4, MXFP4, MXFP8; kernels/common/float_groups.h):
//                a[m, k] = code * level of the inputs, w[n, k] = code * level of the weight, exact in BF16
//                S[m, n] = sum_k a w: products exact, sums in FP32, or group by group sums of a code, each
//                times the level (CUDA, E2M1), or in runs of 64 columns by an order of the device's own,
//                products exact, sums in FP32 (kernels/cuda/float4_linear.h); y[m, n] = S f, then + bias[n]
//                f = 1 / (global of the inputs) * 1 / (global of the weight), of factors their product; 1 of
//                exponents. A group with a NaN or an infinity is NaN, and so is its row of y
//
// Division, scales and what follows S are FP32 operations, one rounding each; a sum over groups and a product
// followed by a bias are fused multiply-adds. The compute type is that of x alone.
#pragma once
#include "kernels/common/float_groups.h"
#include "tensor/quantized_matrix.h"

namespace llmq {

inline constexpr float kLeastInputScale = 0x1p-23f;

// Error(kUnsupported) where this arithmetic does not say what `matrix` means.
void check_low_precision(const QuantizedMatrix& matrix);

// What inputs that become floats in groups want of their weight; groups.size is 0 where they do not.
struct FloatInputs {
  InputGroups groups;
  float factor = 1;  // f
  bool operator==(const FloatInputs&) const = default;
};
FloatInputs float_inputs(const QuantizedMatrix& matrix);
// code * level of row n of such a weight, in_features of them.
void weight_levels(const QuantizedMatrix& matrix, std::int64_t n, BFloat16* into);

}  // namespace llmq
