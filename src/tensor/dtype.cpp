#include "tensor/dtype.h"

#include <array>
#include <cstddef>

#include "base/checked.h"

namespace llmq {
namespace {

constexpr std::array kRows = {
    DTypeRow{DType::kF64, "F64", "F64", 28, 1, 8},
    DTypeRow{DType::kF32, "F32", "F32", 0, 1, 4},
    DTypeRow{DType::kF16, "F16", "F16", 1, 1, 2},
    DTypeRow{DType::kBF16, "BF16", "BF16", 30, 1, 2},
    DTypeRow{DType::kF8E4M3, "F8_E4M3", "F8_E4M3", -1, 1, 1},
    DTypeRow{DType::kF8E5M2, "F8_E5M2", "F8_E5M2", -1, 1, 1},
    DTypeRow{DType::kI64, "I64", "I64", 27, 1, 8},
    DTypeRow{DType::kU64, "U64", "U64", -1, 1, 8},
    DTypeRow{DType::kI32, "I32", "I32", 26, 1, 4},
    DTypeRow{DType::kU32, "U32", "U32", -1, 1, 4},
    DTypeRow{DType::kI16, "I16", "I16", 25, 1, 2},
    DTypeRow{DType::kU16, "U16", "U16", -1, 1, 2},
    DTypeRow{DType::kI8, "I8", "I8", 24, 1, 1},
    DTypeRow{DType::kU8, "U8", "U8", -1, 1, 1},
    DTypeRow{DType::kBool, "BOOL", "BOOL", -1, 1, 1},
    DTypeRow{DType::kC64, "C64", "C64", -1, 1, 8},
    DTypeRow{DType::kF8E8M0, "F8_E8M0", "F8_E8M0", -1, 1, 1},
    DTypeRow{DType::kF8E4M3Fnuz, "F8_E4M3FNUZ", "F8_E4M3FNUZ", -1, 1, 1},
    DTypeRow{DType::kF8E5M2Fnuz, "F8_E5M2FNUZ", "F8_E5M2FNUZ", -1, 1, 1},
    DTypeRow{DType::kF4, "F4", "F4", -1, 2, 1},
    DTypeRow{DType::kF6E2M3, "F6_E2M3", "F6_E2M3", -1, 4, 3},
    DTypeRow{DType::kF6E3M2, "F6_E3M2", "F6_E3M2", -1, 4, 3},
    DTypeRow{DType::kQ4_0, "Q4_0", "", 2, 32, 18},
    DTypeRow{DType::kQ4_1, "Q4_1", "", 3, 32, 20},
    DTypeRow{DType::kQ5_0, "Q5_0", "", 6, 32, 22},
    DTypeRow{DType::kQ5_1, "Q5_1", "", 7, 32, 24},
    DTypeRow{DType::kQ8_0, "Q8_0", "", 8, 32, 34},
    DTypeRow{DType::kQ2_K, "Q2_K", "", 10, 256, 84},
    DTypeRow{DType::kQ3_K, "Q3_K", "", 11, 256, 110},
    DTypeRow{DType::kQ4_K, "Q4_K", "", 12, 256, 144},
    DTypeRow{DType::kQ5_K, "Q5_K", "", 13, 256, 176},
    DTypeRow{DType::kQ6_K, "Q6_K", "", 14, 256, 210},
    DTypeRow{DType::kMXFP4, "MXFP4", "", 39, 32, 17},
    DTypeRow{DType::kIQ4_NL, "IQ4_NL", "", 20, 32, 18},
    DTypeRow{DType::kIQ4_XS, "IQ4_XS", "", 23, 256, 136},
    DTypeRow{DType::kIQ2_XXS, "IQ2_XXS", "", 16, 256, 66},
    DTypeRow{DType::kIQ2_XS, "IQ2_XS", "", 17, 256, 74},
    DTypeRow{DType::kIQ2_S, "IQ2_S", "", 22, 256, 82},
    DTypeRow{DType::kIQ3_XXS, "IQ3_XXS", "", 18, 256, 98},
    DTypeRow{DType::kIQ3_S, "IQ3_S", "", 21, 256, 110},
    DTypeRow{DType::kIQ1_S, "IQ1_S", "", 19, 256, 50},
    DTypeRow{DType::kIQ1_M, "IQ1_M", "", 29, 256, 56},
    DTypeRow{DType::kTQ1_0, "TQ1_0", "", 34, 256, 54},
    DTypeRow{DType::kTQ2_0, "TQ2_0", "", 35, 256, 66},
    DTypeRow{DType::kNVFP4, "NVFP4", "", 40, 64, 36},
};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kRows.size(); ++i)
    if (static_cast<std::size_t>(kRows[i].dtype) != i) return false;
  return kRows.size() == static_cast<std::size_t>(DType::kNVFP4) + 1;
}
static_assert(in_order(), "rows stand in the order of the enumeration");

}  // namespace

const DTypeRow& dtype_row(DType dtype) { return kRows[static_cast<std::size_t>(dtype)]; }

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  for (const DTypeRow& row : kRows)
    if (!name.empty() && row.safetensors_name == name) return row.dtype;
  return std::nullopt;
}

std::optional<std::uint64_t> stored_bytes(DType dtype, std::uint64_t elements) {
  const DTypeRow& row = dtype_row(dtype);
  const auto block = static_cast<std::uint64_t>(row.block_elements);
  // As the reference reader counts: bits first, which must not overflow either.
  const auto bits = checked_mul(elements, 8 * static_cast<std::uint64_t>(row.block_bytes) / block);
  if (!bits || *bits % 8 != 0) return std::nullopt;
  return *bits / 8;
}

std::optional<DType> dtype_from_ggml(std::uint32_t type) {
  for (const DTypeRow& row : kRows)
    if (row.ggml_type >= 0 && static_cast<std::uint32_t>(row.ggml_type) == type) return row.dtype;
  return std::nullopt;
}

}  // namespace llmq
