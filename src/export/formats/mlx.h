// MLX's container as mlx-lm reads it, and its own rounding (mlx_lm.convert, mode affine), for `convert`.
//
// What the tensors mean: io/codes/mlx.cpp. Of a group with ends lo and hi, in FP32:
//
//   scale = max((hi - lo) / (2^b - 1), 1e-7), with the sign that makes the end of larger magnitude, e, code
//   0; q = round(e / scale); where that is not 0: scale = e / q, bias = e; else bias = 0
//   code = clamp(round((w - bias) / scale), 0, 2^b - 1); then scale and bias are rounded to the weight's type
//
// The bytes are those of mx.quantize (mlx 0.32, backend/cpu/quantized.cpp).
#pragma once
#include <span>
#include <string>
#include <vector>

#include "export/formats/packed_formats.h"
#include "io/checkpoint.h"
#include "model/model_spec.h"

namespace llmq {

inline constexpr const char* kMlxFormat = "mlx";

// How a checkpoint is stored: "gguf", "mlx", or `packed`, the name of its packed modules' format.
std::string stored_format(const Checkpoint& checkpoint, const std::string& packed);

// The matrices that mlx_lm.convert rounds: linears, the embedding and the head, where the group divides the
// rows; scales are of the type that the weight has. What MLX has no codes for is left to check_expressible().
std::vector<PlannedModule> mlx_modules(const Checkpoint& checkpoint, const ModelSpec& spec,
                                       const std::string& scheme);
std::vector<PackedTensor> quantize_mlx(const PlannedModule& m, std::span<const float> weight);

}  // namespace llmq
