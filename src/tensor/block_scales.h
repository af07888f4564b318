// Scales of floats in groups: what their bytes mean, and how compressed-tensors rounds them.
//
//   two levels (NVFP4)  scale = e4m3(byte) / global in FP32 (modelopt: times global); byte = the E4M3 nearest
//                       to largest / 6 * global, at most 448; a byte of 0 becomes 0.125. global = top * 6 /
//                       largest of the weight, where top is the number that its largest group shall have
//   exponents (MX)      scale = 2^(byte - 127), byte 255 is no number (tensor/mxfp4.h);
//                       byte = e - floor(log2 of the largest code) of largest = m 2^(e - 127), with e one
//                       more from m = 1.75 on, within 0 .. 254. OCP and ggml do without that step, so that
//                       a group has another byte in a GGUF
//
// largest: of the magnitudes of a group. Sources: compressed_tensors 0.20 quantization/utils/{helpers.py,
// mxfp_utils.py}, compressors/{nvfp4,mxfp4,mxfp8}.
#pragma once
#include <cstdint>

#include "kernels/common/float_groups.h"
#include "tensor/quant_scheme.h"

namespace llmq {

struct QuantizedMatrix;

inline constexpr float kE2M1Top = 6;
// The group of the largest weight has it: all of E4M3's range, as compressed-tensors asks for; and so that
// scales up to 1.75 times as great are there to choose from (Cook et al. 2025, "Four over six").
inline constexpr float kWholeRange = 448, kRoomToSearch = 256;

// 1 where no finite one is.
float nvfp4_global(float largest, float top);
// The byte of a scale before it is divided by `global`.
std::uint8_t nvfp4_byte(float scale_times_global);
// What a byte stands for.
float nvfp4_scale(std::uint8_t byte, float global, GlobalForm form = GlobalForm::kDivisor);
// The byte of such a scale, and what it is before the global one.
std::uint8_t nvfp4_byte_of(float scale, float global, GlobalForm form = GlobalForm::kDivisor);
float nvfp4_level_of(float scale, float global, GlobalForm form);

// Whether a byte stands for every scale of the matrix, to the bit; of two levels, with a level_factor() above
// 0.
bool has_scale_bytes(const QuantizedMatrix& matrix);
// The byte of its n-th scale, where it has them.
std::uint8_t scale_byte(const QuantizedMatrix& matrix, std::size_t n);
// What bfloat16 compute multiplies a level with, rounded once; 0 where FP32 has no normal number for 2^120 of
// it, as kernels take it (kernels/common/float_groups.h).
float level_factor(const QuantizedMatrix& matrix);

// The byte for a group of this type of codes.
std::uint8_t mx_byte(float largest, WeightType type);
// floor(log2(largest)) less that of the type's largest code, in bytes: OCP's rule, not held within the range.
int ocp_byte(float largest, WeightType type);

// The code nearest to a number that is divided by its scale; what became 0 keeps its sign.
std::uint8_t float_code(float scaled, WeightType type);

// How inputs beside weights of this scheme become floats in groups; size 0 where they do not. `global` is
// that of the inputs, of two levels alone.
InputGroups input_groups(const QuantScheme& scheme, float global, GlobalForm form);

}  // namespace llmq
