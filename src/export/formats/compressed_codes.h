// compressed-tensors' "int-quantized" and "float-quantized": weights beside 8-bit inputs, a byte a code; and
// "mxfp8-quantized", whose inputs stay as they are here.
//
//   <module>.weight             I8 [out, in] = code - 2^(b-1), or F8_E4M3 [out, in]
//   <module>.weight_scale       [out, groups]; [1] per tensor; [ceil(out/128), ceil(in/128)] in blocks;
//                               U8 [out, in/32] of mxfp8-quantized: exponents
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

// "int-quantized", "float-quantized", "mxfp8-quantized"; or "pack-quantized" for integers alone and
// "nvfp4-pack-quantized" and "mxfp4-pack-quantized", which are stored another way.
std::string_view compressed_format(const QuantScheme& scheme);

std::vector<TensorDeclaration> declare_codes(const PlannedModule& module);
std::vector<PackedTensor> pack_codes(const PlannedModule& module, const QuantizedMatrix& matrix);
std::optional<std::string> codes_refusal(const PlannedModule& module);
// How compressed-tensors describes one kind of quantized numbers, weights or inputs or a KV cache: its
// QuantizationArgs. What is not set here is one static scale for 8-bit integers around 0.
struct QuantizationArguments {
  Json column_order, block_structure, group_size;  // null where there is none
  bool dynamic = false;                            // scales are taken from the numbers as they come
  bool local = false;                              // all but the global one of two levels
  int bits = 8;
  Json observer = "memoryless_minmax";
  const char* strategy = "tensor";
  bool symmetric = true, is_float = false;
  Json scale_dtype;  // null: as the stored scales say

  Json to_json() const;
};
// Of floats in groups, weights or the inputs beside them.
QuantizationArguments float_group_arguments(const QuantScheme& scheme, bool of_inputs);
// config.json's input_activations; null for inputs that are not quantized.
Json input_config(const QuantScheme& scheme);

}  // namespace llmq
