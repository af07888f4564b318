// Element types: what a stored element means and how many bytes a run of them takes. One row of a table per
// type.
//
// Plain types hold one element per unit. GGUF block types hold `block_elements` values in `block_bytes`
// bytes; a row of a matrix is a whole number of blocks. Sources: safetensors format document; ggml's gguf.md
// and ggml-common.h.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace llmq {

enum class DType : std::uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kI64,
  kU64,
  kI32,
  kU32,
  kI16,
  kU16,
  kI8,
  kU8,
  kBool,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};

struct DTypeRow {
  DType dtype;
  std::string_view name;              // "BF16", "Q4_K": as printed
  std::string_view safetensors_name;  // empty where safetensors has none
  int ggml_type;                      // -1 where GGUF has none
  int block_elements, block_bytes;
};

const DTypeRow& dtype_row(DType dtype);
std::optional<DType> dtype_from_safetensors(std::string_view name);
std::optional<DType> dtype_from_ggml(std::uint32_t type);
inline bool is_block_type(DType dtype) { return dtype_row(dtype).block_elements > 1; }
// Whether its values are numbers that read_float32() and its like turn into FP32: F64, F32, F16, BF16 and the
// block types.
inline bool is_float(DType dtype) { return is_block_type(dtype) || dtype <= DType::kBF16; }
inline int element_bytes(DType dtype) { return dtype_row(dtype).block_bytes; }  // plain types only

}  // namespace llmq
