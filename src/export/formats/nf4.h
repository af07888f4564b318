// NF4 of bitsandbytes (load_in_4bit), as Transformers saves it: which linears are rounded, their tensors, and
// quantization_config. What the tensors mean: io/bitsandbytes.cpp.
//
//   absmax = the largest magnitude of each 64 numbers, row after row;  code = the nearest of 16 numbers to
//   x * (1 / absmax), ties to the lower one
//
// The bytes are those of bitsandbytes.functional.quantize_4bit (0.50, backends/default/ops.py); of nested
// scales as far as those are the same everywhere (export/formats/nested_scales.h), and behind the JSON of
// quant_state, whose length has to be known before the offset is, blanks fill it up.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "export/formats/packed_formats.h"
#include "io/checkpoint.h"
#include "model/model_spec.h"

namespace llmq {

inline constexpr const char* kNf4Format = "bitsandbytes";

// In the order of the blocks. Error(kUnsupported) by name for a model that Transformers would not load so:
// experts, vision towers, rows of an odd length.
std::vector<PlannedModule> nf4_modules(const Checkpoint& checkpoint, const ModelSpec& spec);

struct Nf4Form {
  DType dtype = DType::kBF16;  // or F16 or F32: the type that the weight has, or would have
  bool nested = false;         // scales in 8 bits (bnb_4bit_use_double_quant)
};

std::vector<TensorDeclaration> declare_nf4(const PlannedModule& m, const Nf4Form& form);
std::vector<PackedTensor> pack_nf4(const PlannedModule& m, std::span<const float> weight,
                                   const Nf4Form& form);
// `dense`: linears that stay as they are.
Json nf4_config(const std::vector<std::string>& dense, const Nf4Form& form);

}  // namespace llmq
