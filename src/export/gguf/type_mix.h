// Which type each tensor of a GGUF gets: llama.cpp's file types and the rules by which they mix block types.
//
// A file type names a default; attn_v (or attn_qkv), ffn_down, attn_output and the output (or, where no
// output is stored, the embedding) get more bits by their place in the model, the more the deeper a block
// matters. A row that a type's blocks do not divide takes the next coarser one: Q4_K becomes Q5_0, Q5_K
// Q5_1, Q6_K Q8_0, Q2_K and Q3_K Q4_0, IQ4_XS IQ4_NL, and what 32 does not divide becomes F16. MXFP4_MOE is
// MXFP4 of experts and Q8_0 of all else. Norms, biases and everything of one dimension keep the type they
// have. Source: llama.cpp, src/llama-quant.cpp (llama_tensor_get_type_impl, tensor_type_fallback).
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/gguf/gguf_family.h"
#include "tensor/tensor_view.h"

namespace llmq {

struct GgufFileType {
  std::string_view name;  // "Q4_K_M"
  std::uint32_t id;       // general.file_type
  DType default_type;
};

// In any case; llama.cpp's short names Q3_K, Q4_K and Q5_K are the _M ones. Null for a name that is not one.
const GgufFileType* find_gguf_file_type(std::string_view name);
std::string gguf_type_name(const GgufFileType& type);  // "q4_k_m"
std::string gguf_file_type_names();                    // "f32, f16, ..."
// What to do in place of asking for another name; of 4-bit floats, whose codes a GGUF gets from a directory.
std::string gguf_file_type_hint(bool float4);

// Of one tensor: "q4_k", in any case. None for a name that is not one, such as "q4_k_m".
std::optional<DType> find_gguf_tensor_type(std::string_view name);
std::string gguf_tensor_type_name(DType type);  // "q4_k"
std::string gguf_tensor_type_names();           // "f32, f16, ..."

// What the rules look at besides names and shapes.
struct GgufMixModel {
  GgufLarge large = GgufLarge::kNone;
  int layers = 0, heads = 0, kv_heads = 0, experts = 0;
  GgufTypes types = GgufTypes::kUsual;
};

struct GgufMixTensor {
  std::string name;  // GGUF's
  DType stored;      // the type it has where it is not rounded
  Shape shape;
  bool kept = false;  // codes that types of llama.cpp's converter leave as they are
};

// Plain types and Q8_0, which llama.cpp's converter writes; llama-quantize alone makes the others.
bool is_of_converter(const GgufFileType& file_type);

// What general.file_type says: of plain types beside kept codes llama.cpp's converter says MXFP4_MOE, and of
// NVFP4 that.
GgufFileType stated_file_type(const GgufFileType& file_type, std::span<const GgufMixTensor> tensors);

// Before `later` in the order in which llama.cpp goes through the tensors, which is the order of the file.
bool gguf_tensor_before(const std::string& name, const std::string& later);

// Whether a tensor is ever stored in blocks: a matrix that is neither norm, router nor convolution.
bool may_have_block_type(const GgufMixTensor& tensor);
// `type`, or what llama.cpp takes for it where its blocks do not divide a row of so many columns.
DType fitting_gguf_type(DType type, std::int64_t columns);

// A type for each tensor; `tensors` in that order. `importance`: whether an importance matrix is at hand.
std::vector<DType> choose_gguf_types(const GgufFileType& file_type, const GgufMixModel& model,
                                     std::span<const GgufMixTensor> tensors, bool importance);

}  // namespace llmq
