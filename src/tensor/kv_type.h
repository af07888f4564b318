// In what a KV cache holds keys and values: plain numbers, or packed rows (kernels/common/kv_row.h), FP16
// among them.
#pragma once
#include <cstdint>
#include <optional>

#include "kernels/common/kv_row.h"
#include "tensor/dtype.h"

namespace llmq {

struct KvFormats {
  KvFormat keys, values;
  bool operator==(const KvFormats&) const = default;
};

// Of four bits are values; keys, which lose more, have five.
inline constexpr KvFormats kKvFloat16{KvFormat::kFloat16, KvFormat::kFloat16},
    kKvFloat8{KvFormat::kFloat8, KvFormat::kFloat8},
    kKvFloat8E5M2{KvFormat::kFloat8E5M2, KvFormat::kFloat8E5M2}, kKvInt8{KvFormat::kInt8, KvFormat::kInt8},
    kKvInt4{KvFormat::kInt5, KvFormat::kInt4};

struct KvType {
  DType plain = DType::kBF16;  // F32 or BF16; of no account where they are packed
  std::optional<KvFormats> packed = {};

  // Of one position and head.
  std::int64_t key_bytes(std::int64_t head_dim) const {
    return packed ? KvRow{packed->keys, head_dim}.bytes() : head_dim * element_bytes(plain);
  }
  std::int64_t value_bytes(std::int64_t head_dim) const {
    return packed ? KvRow{packed->values, head_dim}.bytes() : head_dim * element_bytes(plain);
  }
  std::int64_t bytes(std::int64_t head_dim) const { return key_bytes(head_dim) + value_bytes(head_dim); }
  bool operator==(const KvType&) const = default;
};

}  // namespace llmq
