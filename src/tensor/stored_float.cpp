#include "tensor/stored_float.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "base/half.h"

namespace llmq {
namespace {

[[noreturn]] void refuse(DType dtype) {
  fail(ErrorKind::kUnsupported, "FP32 values cannot be stored as {}", dtype_row(dtype).name);
}

}  // namespace

void store_floats(std::span<const float> values, DType dtype, std::byte* into) {
  static_assert(std::endian::native == std::endian::little);
  if (dtype == DType::kF32) {
    std::memcpy(into, values.data(), values.size_bytes());
    return;
  }
  if (dtype != DType::kBF16 && dtype != DType::kF16) refuse(dtype);
  for (const float value : values) {
    const std::uint16_t bits = dtype == DType::kBF16 ? to_bfloat16(value).bits : to_float16(value).bits;
    std::memcpy(into, &bits, sizeof bits);
    into += sizeof bits;
  }
}

std::vector<std::byte> stored_floats(std::span<const float> values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(element_bytes(dtype)));
  store_floats(values, dtype, bytes.data());
  return bytes;
}

float stored_float(float value, DType dtype) {
  if (dtype == DType::kF32) return value;
  if (dtype == DType::kBF16) return to_float(to_bfloat16(value));
  if (dtype == DType::kF16) return to_float(to_float16(value));
  refuse(dtype);
}

bool storing_overflows(float value, DType dtype) {
  constexpr float kLargestFloat16 = 65504;  // no type of the three ends earlier
  return std::fabs(value) > kLargestFloat16 && std::isfinite(value) &&
         !std::isfinite(stored_float(value, dtype));
}

}  // namespace llmq
