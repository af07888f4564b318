// compressed-tensors' "int-quantized" and "float-quantized": weights beside 8-bit inputs, a byte a code.
//
//   <module>.weight             I8 [out, in] = code - 2^(b-1), or F8_E4M3 [out, in]
//   <module>.weight_scale       [out, groups]; [1] per tensor; [ceil(out/128), ceil(in/128)] in blocks
//   <module>.weight_zero_point  I8 [out, groups], asymmetric only: zero - 2^(b-1)
//   <module>.input_scale        [1], static inputs only, in the scales' type
//
// W4A8 is int-quantized too: what compressed-tensors itself chooses for it and vLLM reads.
// Sources: compressed_tensors 0.20 compressors/{naive_quantized,format}, quantization/quant_args.py; vLLM's
// schemes/compressed_tensors_{w8a8_int8,w8a8_fp8,w4a8_int}.py; docs/reference/formats.md.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "export/formats/packed_formats.h"

namespace llmq {

// "int-quantized", "float-quantized", or "pack-quantized" for weights alone, which is stored another way.
std::string_view compressed_format(const QuantScheme& scheme);

std::vector<TensorDeclaration> declare_codes(const PlannedModule& module);
std::vector<PackedTensor> pack_codes(const PlannedModule& module, const QuantizedMatrix& matrix);
std::optional<std::string> codes_refusal(const PlannedModule& module);
// config.json's input_activations; null for inputs that are not quantized.
Json input_config(const QuantScheme& scheme);

}  // namespace llmq
