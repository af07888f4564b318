// Element types: what a stored element means and how many bytes a run of them takes. One row of a table per
// type.
//
// Plain types hold one element per unit. GGUF block types hold `block_elements` values in `block_bytes`
// bytes; a row of a matrix is a whole number of blocks. Types narrower than a byte (F4, F6) lie bit after bit
// through a whole tensor. Those of safetensors that no model here computes with (from C64 on) are listed and
// copied, and never turned into numbers. Sources: safetensors format document and its reader, 0.8.0; ggml's
// gguf.md and ggml-common.h.
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
  kC64,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kF4,
  kF6E2M3,
  kF6E3M2,
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
  kMXFP4,
  kIQ4_NL,
  kIQ4_XS,
  kIQ2_XXS,
  kIQ2_XS,
  kIQ2_S,
  kIQ3_XXS,
  kIQ3_S,
  kIQ1_S,
  kIQ1_M,
  kTQ1_0,
  kTQ2_0,
  kNVFP4,  // the last one
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
inline bool is_block_type(DType dtype) { return dtype >= DType::kQ4_0; }
inline bool is_narrower_than_a_byte(DType dtype) { return dtype >= DType::kF4 && dtype <= DType::kF6E3M2; }
// Whether to_float32() knows its values.
inline bool has_values(DType dtype) { return dtype <= DType::kBool || is_block_type(dtype); }
// Whether its values are numbers that read_float32() and its like turn into FP32: F64, F32, F16, BF16 and the
// block types.
inline bool is_float(DType dtype) { return is_block_type(dtype) || dtype <= DType::kBF16; }
inline int element_bytes(DType dtype) { return dtype_row(dtype).block_bytes; }  // plain types only
// At a multiple of what an element lies to be read in place.
inline int alignment(DType dtype) {
  return is_block_type(dtype) ? 2 : is_narrower_than_a_byte(dtype) ? 1 : dtype_row(dtype).block_bytes;
}
// Bytes of so many elements of a type that safetensors has. None where 64 bits do not hold the number, or
// where elements narrower than a byte end inside one.
std::optional<std::uint64_t> stored_bytes(DType dtype, std::uint64_t elements);

}  // namespace llmq
