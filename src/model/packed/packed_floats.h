// E2M1 codes in pairs, and scales that are no plain numbers, as compressed-tensors stores them; the layout
// stands in export/formats/compressed_floats.h. Cost: one pass over the bytes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "model/packed/packed_tensors.h"

namespace llmq {

inline constexpr const char* kGlobalSuffix = ".weight_global_scale";
inline constexpr const char* kFactorSuffix = ".weight_scale_2";  // modelopt's
// Of inputs that are rounded.
inline constexpr const char *kInputScaleSuffix = ".input_scale", *kInputGlobalSuffix = ".input_global_scale";

// Shapes checked. Errors: kBadInput with the tensor's name. modelopt has the codes as "weight" and the one
// number as "weight_scale_2", without an extent or with one of 1.
PackedTensors open_packed_float4(const Checkpoint& checkpoint, const std::string& module,
                                 const QuantScheme& scheme, PackedFormat format);

// What the scales of two levels are divided or multiplied by; 0 where there is none.
float read_global_scale(const Checkpoint& checkpoint, const PackedTensors& packed);
GlobalForm global_form(const PackedTensors& packed);

// [out * groups]: E4M3 over the global scale or times it, or exponents; what stands for no number is refused.
std::vector<float> read_group_scales(const Checkpoint& checkpoint, const PackedTensors& packed, float global);

// Two codes a byte, the first one low.
std::vector<std::uint8_t> read_code_pairs(const Checkpoint& checkpoint, const StoredTensor& tensor);

}  // namespace llmq
