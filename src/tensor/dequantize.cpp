// Stored elements to FP32. Block types multiply and add in ggml's order (ggml-quants.c, dequantize_row_*), so
// that the same file gives the same bits here and there: with d, m the block's FP16 parameters, s, t its
// integer scales and q a code
//   Q4_0, Q5_0, Q8_0: d*q      Q4_1, Q5_1: d*q + m      Q3_K, Q6_K: (d*s)*q      Q2_K, Q4_K, Q5_K: (d*s)*q -
//   (m*t)
// Bytes come from mapped files and may lie at any address: every load is a memcpy.
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/half.h"
#include "tensor/tensor_view.h"

namespace llmq {
namespace {

using Bytes = const std::uint8_t*;

template <typename T>
T load(Bytes from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

float load_half(Bytes from) { return to_float(Float16{load<std::uint16_t>(from)}); }

// E5M2 is the upper half of an FP16.
float from_e5m2(std::uint8_t bits) { return to_float(Float16{static_cast<std::uint16_t>(bits << 8)}); }

// E4M3 without infinities (OCP 8-bit floating point, "fn"): 0x7f and 0xff are NaN, exponent 0 counts units of
// 2^-9.
float from_e4m3(std::uint8_t bits) {
  const std::uint32_t sign = (bits & 0x80u) << 24, magnitude = bits & 0x7fu;
  if (magnitude == 0x7f) return float_from_bits(sign | 0x7fc00000u);
  // As FP16 fields the exponent is biased by 15 instead of 7: 2^8 too small, and the product is exact,
  // subnormals included.
  const float value = to_float(Float16{static_cast<std::uint16_t>(magnitude << 7)}) * 0x1p8f;
  return float_from_bits(sign | bits_from_float(value));
}

// y[i] = q4(i) for 32 nibbles of 16 bytes: low nibbles first.
template <typename Value>
void each_nibble(Bytes qs, const Value& value) {
  for (int j = 0; j < 16; ++j) {
    value(j, qs[j] & 15);
    value(j + 16, qs[j] >> 4);
  }
}

// The same with a fifth bit of each code in the 32 bits of `high`.
template <typename Value>
void each_five_bits(Bytes high, Bytes qs, const Value& value) {
  const auto bits = load<std::uint32_t>(high);
  each_nibble(qs, [&](int i, int low) { value(i, low | static_cast<int>((bits >> i & 1u) << 4)); });
}

void q4_0(Bytes block, float* y) {
  const float d = load_half(block);
  each_nibble(block + 2, [&](int i, int q) { y[i] = static_cast<float>(q - 8) * d; });
}

void q4_1(Bytes block, float* y) {
  const float d = load_half(block), m = load_half(block + 2);
  each_nibble(block + 4, [&](int i, int q) { y[i] = static_cast<float>(q) * d + m; });
}

void q5_0(Bytes block, float* y) {
  const float d = load_half(block);
  each_five_bits(block + 2, block + 6, [&](int i, int q) { y[i] = static_cast<float>(q - 16) * d; });
}

void q5_1(Bytes block, float* y) {
  const float d = load_half(block), m = load_half(block + 2);
  each_five_bits(block + 4, block + 8, [&](int i, int q) { y[i] = static_cast<float>(q) * d + m; });
}

void q8_0(Bytes block, float* y) {
  const float d = load_half(block);
  for (int i = 0; i < 32; ++i) y[i] = static_cast<float>(static_cast<std::int8_t>(block[2 + i])) * d;
}

// Two bits of element i of 256: each run of 128 lies in 32 bytes, two bits deeper every 32 elements.
int crumb(Bytes qs, int i) { return qs[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3; }

void q2_k(Bytes block, float* y) {
  const Bytes scales = block, qs = block + 16;
  const float d = load_half(block + 80), dmin = load_half(block + 82);
  for (int s = 0; s < 16; ++s) {
    const float scale = d * static_cast<float>(scales[s] & 15),
                minimum = dmin * static_cast<float>(scales[s] >> 4);
    for (int i = 16 * s; i < 16 * s + 16; ++i) y[i] = scale * static_cast<float>(crumb(qs, i)) - minimum;
  }
}

void q3_k(Bytes block, float* y) {
  const Bytes mask = block, qs = block + 32, packed = block + 96;
  const float d = load_half(block + 108);
  for (int s = 0; s < 16; ++s) {  // scale s: 4 low bits in byte s % 8, 2 high bits in byte 8 + s % 4
    const int low = packed[s % 8] >> (s / 8 * 4) & 15, high = packed[8 + s % 4] >> (s / 4 * 2) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    for (int i = 16 * s; i < 16 * s + 16; ++i) {
      const int four = mask[i % 32] >> (i / 32) & 1 ? 0 : 4;
      y[i] = scale * static_cast<float>(crumb(qs, i) - four);
    }
  }
}

// The 6-bit scale and minimum of sub-block j of 8, out of 12 bytes.
struct ScaleAndMinimum {
  int scale, minimum;
};
ScaleAndMinimum six_bits(Bytes p, int j) {
  if (j < 4) return {p[j] & 63, p[j + 4] & 63};
  return {(p[j + 4] & 15) | (p[j - 4] >> 6) << 4, (p[j + 4] >> 4) | (p[j] >> 6) << 4};
}

void q4_k(Bytes block, float* y) {
  const float d = load_half(block), dmin = load_half(block + 2);
  const Bytes qs = block + 16;
  for (int j = 0; j < 8; ++j) {
    const ScaleAndMinimum six = six_bits(block + 4, j);
    const float scale = d * static_cast<float>(six.scale), minimum = dmin * static_cast<float>(six.minimum);
    for (int l = 0; l < 32; ++l) {
      const int q = qs[j / 2 * 32 + l] >> (j % 2 * 4) & 15;
      y[32 * j + l] = scale * static_cast<float>(q) - minimum;
    }
  }
}

void q5_k(Bytes block, float* y) {
  const float d = load_half(block), dmin = load_half(block + 2);
  const Bytes high = block + 16, qs = block + 48;
  for (int j = 0; j < 8; ++j) {
    const ScaleAndMinimum six = six_bits(block + 4, j);
    const float scale = d * static_cast<float>(six.scale), minimum = dmin * static_cast<float>(six.minimum);
    for (int l = 0; l < 32; ++l) {
      const int q = (qs[j / 2 * 32 + l] >> (j % 2 * 4) & 15) | (high[l] >> j & 1) << 4;
      y[32 * j + l] = scale * static_cast<float>(q) - minimum;
    }
  }
}

void q6_k(Bytes block, float* y) {
  const Bytes low = block, high = block + 128, scales = block + 192;
  const float d = load_half(block + 208);
  for (int s = 0; s < 16; ++s) {
    const float scale = d * static_cast<float>(static_cast<std::int8_t>(scales[s]));
    for (int i = 16 * s; i < 16 * s + 16; ++i) {
      const int nibble = low[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15;
      const int top = high[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
      y[i] = scale * static_cast<float>((nibble | top << 4) - 32);
    }
  }
}

using BlockReader = void (*)(Bytes block, float* y);

BlockReader block_reader(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return q4_0;
    case DType::kQ4_1:
      return q4_1;
    case DType::kQ5_0:
      return q5_0;
    case DType::kQ5_1:
      return q5_1;
    case DType::kQ8_0:
      return q8_0;
    case DType::kQ2_K:
      return q2_k;
    case DType::kQ3_K:
      return q3_k;
    case DType::kQ4_K:
      return q4_k;
    case DType::kQ5_K:
      return q5_k;
    case DType::kQ6_K:
      return q6_k;
    default:
      return nullptr;
  }
}

template <typename T, typename Convert>
void plain_row(Bytes from, std::span<float> into, const Convert& convert) {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = convert(load<T>(from + i * sizeof(T)));
}

template <typename T>
void number_row(Bytes from, std::span<float> into) {
  plain_row<T>(from, into, [](T value) { return static_cast<float>(value); });
}

void row_to_float32(DType dtype, Bytes from, std::span<float> into) {
  switch (dtype) {
    case DType::kF64:
      return number_row<double>(from, into);
    case DType::kF32:
      std::memcpy(into.data(), from, into.size_bytes());
      return;
    case DType::kF16:
      return plain_row<std::uint16_t>(from, into, [](std::uint16_t bits) { return to_float(Float16{bits}); });
    case DType::kBF16:
      return plain_row<std::uint16_t>(from, into,
                                      [](std::uint16_t bits) { return to_float(BFloat16{bits}); });
    case DType::kF8E4M3:
      return plain_row<std::uint8_t>(from, into, from_e4m3);
    case DType::kF8E5M2:
      return plain_row<std::uint8_t>(from, into, from_e5m2);
    case DType::kI64:
      return number_row<std::int64_t>(from, into);
    case DType::kU64:
      return number_row<std::uint64_t>(from, into);
    case DType::kI32:
      return number_row<std::int32_t>(from, into);
    case DType::kU32:
      return number_row<std::uint32_t>(from, into);
    case DType::kI16:
      return number_row<std::int16_t>(from, into);
    case DType::kU16:
      return number_row<std::uint16_t>(from, into);
    case DType::kI8:
      return number_row<std::int8_t>(from, into);
    case DType::kU8:
      return number_row<std::uint8_t>(from, into);
    case DType::kBool:
      return plain_row<std::uint8_t>(from, into, [](std::uint8_t b) { return b != 0 ? 1.f : 0.f; });
    default:
      break;
  }
  const BlockReader read_block = block_reader(dtype);
  const DTypeRow& row = dtype_row(dtype);
  const auto elements = static_cast<std::size_t>(row.block_elements);
  for (std::size_t i = 0; i < into.size(); i += elements, from += row.block_bytes)
    read_block(from, into.data() + i);
}

}  // namespace

void to_float32(const TensorView& from, std::span<float> into) {
  const DTypeRow& row = dtype_row(from.dtype);
  const std::int64_t rows = from.rows(), cols = from.cols();
  if (from.device != Device{} || into.size() != static_cast<std::size_t>(rows * cols) ||
      cols % row.block_elements != 0)
    fail(ErrorKind::kInternal, "to_float32: {} tensor {} into {} values", row.name, from.shape.text(),
         into.size());
  if (into.empty()) return;
  const auto width = static_cast<std::size_t>(cols);
  const std::int64_t stride_bytes = row.block_elements == 1 ? from.row_stride * row.block_bytes
                                                            : cols / row.block_elements * row.block_bytes;
  for (std::int64_t r = 0; r < rows; ++r)
    row_to_float32(from.dtype, static_cast<Bytes>(from.pointer) + r * stride_bytes,
                   into.subspan(static_cast<std::size_t>(r) * width, width));
}

}  // namespace llmq
