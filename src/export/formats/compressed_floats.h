// compressed-tensors' "nvfp4-pack-quantized" and "mxfp4-pack-quantized": weights of E2M1, two codes a byte.
//
//   <module>.weight_packed        U8 [out, in/2]       byte j of a row: code 2j low, code 2j + 1 high
//   <module>.weight_scale         F8_E4M3 [out, in/16], or U8 [out, in/32]: exponents
//   <module>.weight_global_scale  F32 [1]              of two levels only, one for the linears that are fused
//   <module>.input_global_scale   F32 [1]              of their inputs, where these are rounded too
//
// "mxfp8-quantized" has a byte a code (export/formats/compressed_codes.h) and exponents as scales.
// tensor/block_scales.h has what the scales mean. Sources: compressed_tensors 0.20 compressors/{nvfp4,mxfp4,
// mxfp8}, quantization/quant_scheme.py; docs/reference/formats.md.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "export/formats/packed_formats.h"

namespace llmq {

std::vector<TensorDeclaration> declare_float4(const PlannedModule& module);
std::vector<PackedTensor> pack_float4(const PlannedModule& module, const QuantizedMatrix& matrix);
// The bytes of what follows the scales in declare_float4(): the numbers that scales are divided by, or
// multiplied. Where that is another than the matrix has, it is rounded once, and a loader's scales may be off
// by the last of their 24 bits; of a power of two nothing is rounded.
void put_globals(const QuantizedMatrix& matrix, GlobalForm form, std::vector<PackedTensor>& tensors);
// Scales of a group as their bytes, for schemes whose scales are no plain numbers.
std::vector<std::byte> group_scale_bytes(const QuantizedMatrix& matrix);
std::optional<std::string> float_groups_refusal(const PlannedModule& module);

}  // namespace llmq
