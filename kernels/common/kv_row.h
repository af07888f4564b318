// How keys or values of one position and head, `n` numbers, lie in a packed page of a KV cache. Every backend
// writes and reads them by these lines.
//
//   kFloat16       n FP16 numbers; beyond 65504 clamped
//   kFloat8        n codes of E4M3, value = code * scale, with one scale for keys and one for values of a
//                  layer; beyond 448 clamped
//   kFloat8E5M2    the same of E5M2, beyond 57344 clamped: no key or value of a model is, so that engines
//                  leave its scales at 1
//   kInt8          a scale (FP16), n codes -127 .. 127                        value = code * scale
//   kInt5, kInt4   a scale (FP16), codes of b bits, -2^(b-1) .. 2^(b-1) - 1   value = (code + 1/2) * scale
//                  stored with 2^(b-1) added: the low four bits first, the first half of the numbers in the
//                  low nibbles, the second in the high ones; then the fifth bits, the first eighth of the
//                  numbers in bit 0 of each byte and so on, so that a vector of bytes is a vector of
//                  neighbours
//
// Scales are rounded up, so that the range is covered, and codes chosen against what is stored. One rounding
// in FP32 on the way back. A row with NaN or infinity is read as NaN throughout (kFloat16, kFloat8: where it
// was NaN). Always-inlined, as base/half.h.
#pragma once
#include <stdint.h>

#include "kernels/common/anywhere.h"

namespace llmq {

enum class KvFormat : unsigned char { kFloat16, kFloat8, kFloat8E5M2, kInt8, kInt5, kInt4 };

struct KvRow {
  KvFormat format = KvFormat::kInt8;
  int64_t n = 0;

  LLMQ_ANYWHERE bool of_float8() const {
    return format == KvFormat::kFloat8 || format == KvFormat::kFloat8E5M2;
  }
  LLMQ_ANYWHERE int64_t half() const { return (n + 1) / 2; }    // bytes of the nibbles
  LLMQ_ANYWHERE int64_t eighth() const { return (n + 7) / 8; }  // of the fifth bits
  LLMQ_ANYWHERE int64_t bytes() const {
    if (format == KvFormat::kFloat16) return 2 * n;
    if (of_float8()) return n;
    if (format == KvFormat::kInt8) return 2 + n;
    return 2 + half() + (format == KvFormat::kInt5 ? eighth() : 0);
  }
};

// The FP16 next to `value` > 0 that is not below it, at most the largest.
LLMQ_ANYWHERE Float16 kv_scale(float value) {
  Float16 half = to_float16(value < 65504.0f ? value : 65504.0f);
  if (to_float(half) < value && half.bits < 0x7bff) ++half.bits;
  return half;
}

// Of b bits, 2^(b-1) = `top`.
LLMQ_ANYWHERE unsigned kv_code(float x, float inverse, int top) {
  const float code = __builtin_floorf(x * inverse);
  if (!(code > static_cast<float>(-top))) return 0;
  return static_cast<unsigned>((code < static_cast<float>(top - 1) ? static_cast<int>(code) : top - 1) + top);
}

// Codes of 8-bit floats, `Code` being Float8 or Float8E5M2.
template <class Code>
LLMQ_ANYWHERE void kv_store_floats(unsigned char* to, const float* x, int64_t n, float scale) {
  for (int64_t i = 0; i < n; ++i) to[i] = Code::nearest(x[i] / scale).bits;
}
template <class Code>
LLMQ_ANYWHERE void kv_load_floats(float* to, const unsigned char* from, int64_t n, float scale) {
  for (int64_t i = 0; i < n; ++i) to[i] = to_float(Code{from[i]}) * scale;
}

// `scale` belongs to kFloat8 and kFloat8E5M2.
LLMQ_ANYWHERE void kv_store_row(KvRow row, unsigned char* to, const float* x, float scale) {
  const int64_t n = row.n;
  if (row.format == KvFormat::kFloat16) {
    for (int64_t i = 0; i < n; ++i) {
      const Float16 half = to_float16(x[i] > 65504.0f ? 65504.0f : x[i] < -65504.0f ? -65504.0f : x[i]);
      __builtin_memcpy(to + 2 * i, &half, 2);
    }
    return;
  }
  if (row.format == KvFormat::kFloat8) return kv_store_floats<Float8>(to, x, n, scale);
  if (row.format == KvFormat::kFloat8E5M2) return kv_store_floats<Float8E5M2>(to, x, n, scale);
  float nothing = 0, most = 0;  // 0 * x is NaN where x is not finite
  for (int64_t i = 0; i < n; ++i) {
    nothing += 0.0f * x[i];
    most = __builtin_fabsf(x[i]) > most ? __builtin_fabsf(x[i]) : most;
  }
  const int top = row.format == KvFormat::kInt8 ? 127 : row.format == KvFormat::kInt5 ? 16 : 8;
  const Float16 stored = nothing == 0 ? kv_scale(most / static_cast<float>(top)) : Float16{0x7e00};
  const float inverse = stored.bits == 0 ? 0 : 1 / to_float(stored);
  __builtin_memcpy(to, &stored, 2);
  to += 2;
  if (row.format == KvFormat::kInt8) {
    for (int64_t i = 0; i < n; ++i) {
      const float code = __builtin_rintf(x[i] * inverse);
      to[i] = static_cast<unsigned char>(!(code > -127) ? -127 : code < 127 ? static_cast<int>(code) : 127);
    }
    return;
  }
  const int64_t half = row.half(), eighth = row.eighth();
  for (int64_t i = 0; i < half; ++i) {
    const unsigned high = half + i < n ? kv_code(x[half + i], inverse, top) & 15 : 0;
    to[i] = static_cast<unsigned char>((kv_code(x[i], inverse, top) & 15) | high << 4);
  }
  to += half;
  for (int64_t i = 0; row.format == KvFormat::kInt5 && i < eighth; ++i) {
    unsigned byte = 0;
    for (int64_t part = 0; part < 8; ++part)
      if (part * eighth + i < n) byte |= kv_code(x[part * eighth + i], inverse, top) >> 4 << part;
    to[i] = static_cast<unsigned char>(byte);
  }
}

LLMQ_ANYWHERE void kv_load_row(KvRow row, float* to, const unsigned char* from, float scale) {
  const int64_t n = row.n;
  if (row.format == KvFormat::kFloat16) {
    for (int64_t i = 0; i < n; ++i) {
      Float16 half;
      __builtin_memcpy(&half, from + 2 * i, 2);
      to[i] = to_float(half);
    }
    return;
  }
  if (row.format == KvFormat::kFloat8) return kv_load_floats<Float8>(to, from, n, scale);
  if (row.format == KvFormat::kFloat8E5M2) return kv_load_floats<Float8E5M2>(to, from, n, scale);
  Float16 stored;
  __builtin_memcpy(&stored, from, 2);
  const float step = to_float(stored);
  from += 2;
  if (row.format == KvFormat::kInt8) {
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(static_cast<signed char>(from[i])) * step;
    return;
  }
  const int64_t half = row.half(), eighth = row.eighth();
  const float middle = row.format == KvFormat::kInt5 ? 15.5f : 7.5f;
  for (int64_t i = 0; i < half; ++i) to[i] = static_cast<float>(from[i] & 15) - middle;
  for (int64_t i = half; i < n; ++i) to[i] = static_cast<float>(from[i - half] >> 4) - middle;
  from += half;
  // A fifth bit adds 16: eight bytes of them at a time.
  for (int64_t i = 0; row.format == KvFormat::kInt5 && i < eighth; i += 8)
    for (int64_t part = 0; part < 8; ++part) {
      const int64_t at = part * eighth + i, many = eighth - i < n - at ? eighth - i : n - at;
      if (many >= 8)
        for (int64_t j = 0; j < 8; ++j) to[at + j] += static_cast<float>((from[i + j] >> part & 1) << 4);
      else
        for (int64_t j = 0; j < many; ++j) to[at + j] += static_cast<float>((from[i + j] >> part & 1) << 4);
    }
  for (int64_t i = 0; i < n; ++i) to[i] *= step;
}

// Numbers [first, first + kCount) of what kv_load_row() gives, 0 from the n-th on: for threads that share a
// row.
template <int kCount>
LLMQ_ANYWHERE void kv_load_part(KvRow row, float* to, const unsigned char* from, int first, float scale) {
  const int n = static_cast<int>(row.n), half = static_cast<int>(row.half()),
            eighth = static_cast<int>(row.eighth());
  Float16 stored{};
  if (!row.of_float8()) __builtin_memcpy(&stored, from, 2);
  const float step = to_float(stored), middle = row.format == KvFormat::kInt5 ? 15.5f : 7.5f;
  int bit = first / eighth, byte = first % eighth;  // where the fifth one lies
  for (int j = 0; j < kCount; ++j) {
    const int i = first + j;
    if (i >= n) {
      to[j] = 0;
    } else if (row.format == KvFormat::kFloat16) {
      Float16 number;
      __builtin_memcpy(&number, from + 2 * i, 2);
      to[j] = to_float(number);
    } else if (row.of_float8()) {
      to[j] = scale *
              (row.format == KvFormat::kFloat8 ? to_float(Float8{from[i]}) : to_float(Float8E5M2{from[i]}));
    } else if (row.format == KvFormat::kInt8) {
      to[j] = static_cast<float>(static_cast<signed char>(from[2 + i])) * step;
    } else {
      int code = i < half ? from[2 + i] & 15 : from[2 + i - half] >> 4;
      if (row.format == KvFormat::kInt5) code |= (from[2 + half + byte] >> bit & 1) << 4;
      to[j] = (static_cast<float>(code) - middle) * step;
    }
    if (++byte == eighth) {
      byte = 0;
      ++bit;
    }
  }
}

}  // namespace llmq
