// What the bits of a quantized weight mean, as a value: compared, printed and parsed whole.
//
//   value(n, k) = (code(n, k) - zero(n, g)) * scale(n, g),   g = k / group_size        (kernels/common/code_value.h)
//
// Text form: w<bits>a<16|8>[_g<N>|_channel|_tensor][_sym|_asym], e.g. w4a16_g128_asym (cli.md, "What the words mean").
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tensor/dtype.h"

namespace llmq {

enum class Granularity : std::uint8_t { kGroup, kChannel, kTensor };

struct QuantScheme {
  int bits = 4;              // of a weight code: 2..8
  int activation_bits = 16;  // 16: not quantized
  Granularity granularity = Granularity::kGroup;
  int group_size = 128;              // kGroup only
  bool symmetric = false;            // zero is 2^(bits-1) everywhere
  DType scale_dtype = DType::kBF16;  // as stored: kF16, kBF16 or kF32

  int code_count() const { return 1 << bits; }
  int middle() const { return 1 << (bits - 1); }           // the zero of a symmetric scheme
  std::int64_t group_of(std::int64_t in_features) const {  // columns that share one scale
    return granularity == Granularity::kGroup ? group_size : in_features;
  }
  std::string text() const;
  bool operator==(const QuantScheme&) const = default;
};

// A scheme as asked for: parts left out stay open until the plan resolves them (cli.md: no scheme given means w4a16 with the
// largest of 128, 64, 32 that divides every quantized linear; asymmetric for AWQ, symmetric for GPTQ).
struct SchemeRequest {
  int bits = 4;
  int activation_bits = 16;
  std::optional<Granularity> granularity;
  std::optional<int> group_size;
  std::optional<bool> symmetric;
  bool operator==(const SchemeRequest&) const = default;
};

// Error(kUsage) naming the text, and the forms that would do. "fp8", "w4a8..." parse or are refused by name as cli.md says.
SchemeRequest parse_scheme(std::string_view text);

}  // namespace llmq
