// Packing moves whole words where the width divides 32 and runs a 64-bit accumulator where fields cross
// words. AWQ is a transposition as well: it walks tiles of 64 x 64 so that both sides stay in the cache.
// About one cycle per code either way.
#include "tensor/packed_layout.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace llmq {
namespace {

constexpr std::array<int, 8> kAwqOrder = {0, 2, 4, 6, 1, 3, 5, 7};  // nibble i holds output 8c + order[i]
constexpr std::int64_t kTile = 64;

// Output j of eight lies in nibble kAwqPlace[j]: the inverse of the order.
constexpr std::array<int, 8> kAwqPlace = [] {
  std::array<int, 8> place{};
  for (int i = 0; i < 8; ++i) place[static_cast<std::size_t>(kAwqOrder[static_cast<std::size_t>(i)])] = i;
  return place;
}();

std::int64_t words_per_row(std::int64_t count, int bits) { return (count * bits + 31) / 32; }

void check(bool fits, const char* what, std::int64_t rows, std::int64_t count, int bits, std::size_t size) {
  if (!fits || rows < 0 || count < 0 || bits < 2 || bits > 8)
    fail(ErrorKind::kInternal, "{}: {} elements for {} x {} fields of {} bits", what, size, rows, count,
         bits);
}

template <int kBits>
void pack_row(const std::uint8_t* fields, std::int64_t count, std::uint32_t* words) {
  constexpr std::uint32_t kMask = (1u << kBits) - 1;
  std::uint64_t pending = 0;
  int filled = 0;
  for (std::int64_t j = 0; j < count; ++j) {
    pending |= static_cast<std::uint64_t>(fields[j] & kMask) << filled;
    filled += kBits;
    if (filled >= 32) {
      *words++ = static_cast<std::uint32_t>(pending);
      pending >>= 32;
      filled -= 32;
    }
  }
  if (filled > 0) *words = static_cast<std::uint32_t>(pending);
}

template <int kBits>
void unpack_row(const std::uint32_t* words, std::int64_t count, std::uint8_t* fields) {
  constexpr std::uint32_t kMask = (1u << kBits) - 1;
  std::uint64_t pending = 0;
  int filled = 0;
  for (std::int64_t j = 0; j < count; ++j) {
    if (filled < kBits) {
      pending |= static_cast<std::uint64_t>(*words++) << filled;
      filled += 32;
    }
    fields[j] = static_cast<std::uint8_t>(pending & kMask);
    pending >>= kBits;
    filled -= kBits;
  }
}

// Eight 4-bit fields are one word; bytes (a, b) of a little-endian load become (a | b << 4).
template <>
void pack_row<4>(const std::uint8_t* fields, std::int64_t count, std::uint32_t* words) {
  std::int64_t j = 0;
  for (; j + 8 <= count; j += 8) {
    std::uint32_t word = 0;
    for (int i = 0; i < 8; ++i) word |= (fields[j + i] & 15u) << (4 * i);
    *words++ = word;
  }
  if (j == count) return;
  *words = 0;
  for (int shift = 0; j < count; ++j, shift += 4) *words |= (fields[j] & 15u) << shift;
}

template <>
void unpack_row<4>(const std::uint32_t* words, std::int64_t count, std::uint8_t* fields) {
  std::int64_t j = 0;
  for (; j + 8 <= count; j += 8, ++words)
    for (int i = 0; i < 8; ++i) fields[j + i] = static_cast<std::uint8_t>((*words >> (4 * i)) & 15u);
  for (int shift = 0; j < count; ++j, shift += 4)
    fields[j] = static_cast<std::uint8_t>((*words >> shift) & 15u);
}

// Calls f with the width as a constant.
template <typename F>
void with_bits(int bits, const F& f) {
  switch (bits) {
    case 2:
      return f(std::integral_constant<int, 2>());
    case 3:
      return f(std::integral_constant<int, 3>());
    case 4:
      return f(std::integral_constant<int, 4>());
    case 5:
      return f(std::integral_constant<int, 5>());
    case 6:
      return f(std::integral_constant<int, 6>());
    case 7:
      return f(std::integral_constant<int, 7>());
    default:
      return f(std::integral_constant<int, 8>());
  }
}

}  // namespace

std::vector<std::uint32_t> pack_bit_stream(std::span<const std::uint8_t> fields, std::int64_t rows,
                                           std::int64_t count, int bits) {
  check(fields.size() == static_cast<std::size_t>(rows * count), "pack_bit_stream", rows, count, bits,
        fields.size());
  const std::int64_t stride = words_per_row(count, bits);
  std::vector<std::uint32_t> words(static_cast<std::size_t>(rows * stride));
  with_bits(bits, [&](auto width) {
    for (std::int64_t r = 0; r < rows; ++r)
      pack_row<width>(fields.data() + r * count, count, words.data() + r * stride);
  });
  return words;
}

std::vector<std::uint8_t> unpack_bit_stream(std::span<const std::uint32_t> words, std::int64_t rows,
                                            std::int64_t count, int bits) {
  const std::int64_t stride = words_per_row(count, bits);
  check(words.size() == static_cast<std::size_t>(rows * stride), "unpack_bit_stream", rows, count, bits,
        words.size());
  std::vector<std::uint8_t> fields(static_cast<std::size_t>(rows * count));
  with_bits(bits, [&](auto width) {
    for (std::int64_t r = 0; r < rows; ++r)
      unpack_row<width>(words.data() + r * stride, count, fields.data() + r * count);
  });
  return fields;
}

std::vector<std::uint32_t> pack_awq_gemm(std::span<const std::uint8_t> codes, std::int64_t out_features,
                                         std::int64_t columns) {
  check(codes.size() == static_cast<std::size_t>(out_features * columns) && out_features % 8 == 0,
        "pack_awq_gemm", out_features, columns, 4, codes.size());
  const std::int64_t width = out_features / 8;
  std::vector<std::uint32_t> words(codes.size() / 8);
  for (std::int64_t n0 = 0; n0 < out_features; n0 += kTile)
    for (std::int64_t k0 = 0; k0 < columns; k0 += kTile)
      for (std::int64_t n = n0; n < std::min(n0 + kTile, out_features); n += 8) {
        const std::uint8_t* code = codes.data() + n * columns;
        std::uint32_t* word = words.data() + n / 8;
        for (std::int64_t k = k0; k < std::min(k0 + kTile, columns); ++k) {
          std::uint32_t packed = 0;
          for (int i = 0; i < 8; ++i)
            packed |= (code[kAwqOrder[static_cast<std::size_t>(i)] * columns + k] & 15u) << (4 * i);
          word[k * width] = packed;
        }
      }
  return words;
}

std::vector<std::uint8_t> unpack_awq_gemm(std::span<const std::uint32_t> words, std::int64_t out_features,
                                          std::int64_t columns) {
  check(words.size() * 8 == static_cast<std::size_t>(out_features * columns) && out_features % 8 == 0,
        "unpack_awq_gemm", out_features, columns, 4, words.size());
  const std::int64_t width = out_features / 8;
  std::vector<std::uint8_t> codes(words.size() * 8);
  for (std::int64_t n0 = 0; n0 < out_features; n0 += kTile)
    for (std::int64_t k0 = 0; k0 < columns; k0 += kTile)
      for (std::int64_t n = n0; n < std::min(n0 + kTile, out_features); n += 8) {
        std::array<std::uint32_t, kTile> column;
        const std::int64_t count = std::min(kTile, columns - k0);
        for (std::int64_t k = 0; k < count; ++k)
          column[static_cast<std::size_t>(k)] = words[static_cast<std::size_t>((k0 + k) * width + n / 8)];
        for (int j = 0; j < 8; ++j) {
          std::uint8_t* code = codes.data() + (n + j) * columns + k0;
          const int shift = 4 * kAwqPlace[static_cast<std::size_t>(j)];
          for (std::int64_t k = 0; k < count; ++k)
            code[k] = static_cast<std::uint8_t>((column[static_cast<std::size_t>(k)] >> shift) & 15u);
        }
      }
  return codes;
}

std::vector<std::uint32_t> pack_gptq(std::span<const std::uint8_t> codes, std::int64_t out_features,
                                     std::int64_t columns, int bits) {
  check(columns * bits % 32 == 0, "pack_gptq", out_features, columns, bits, codes.size());
  const std::vector<std::uint32_t> streams = pack_bit_stream(codes, out_features, columns, bits);
  return transposed(std::span(streams), out_features, words_per_row(columns, bits));
}

std::vector<std::uint8_t> unpack_gptq(std::span<const std::uint32_t> words, std::int64_t out_features,
                                      std::int64_t columns, int bits) {
  check(columns * bits % 32 == 0, "unpack_gptq", out_features, columns, bits, words.size());
  const std::vector<std::uint32_t> streams = transposed(words, words_per_row(columns, bits), out_features);
  return unpack_bit_stream(streams, out_features, columns, bits);
}

std::vector<std::uint8_t> unpack_gptq_zeros(std::span<const std::uint32_t> words, std::int64_t out_features,
                                            std::int64_t groups, int bits, GptqZeros stored) {
  std::vector<std::uint32_t> whole(words.begin(), words.end());
  const bool fields_fill_words = 32 % bits == 0;
  if (stored == GptqZeros::kLessOne && fields_fill_words)
    for (std::uint32_t& word : whole) word += 0xffffffffu / ((1u << bits) - 1);  // a one in every field
  std::vector<std::uint8_t> zeros = unpack_bit_stream(whole, groups, out_features, bits);
  if (stored == GptqZeros::kLessOne && !fields_fill_words)
    for (std::uint8_t& zero : zeros) zero = static_cast<std::uint8_t>((zero + 1) & ((1 << bits) - 1));
  return transposed(std::span<const std::uint8_t>(zeros), groups, out_features);
}

bool has_gptq_v1_borrow(std::span<const std::uint32_t> words, std::int64_t out_features, std::int64_t groups,
                        int bits) {
  const std::vector<std::uint8_t> fields = unpack_bit_stream(words, groups, out_features, bits);
  return std::find(fields.begin(), fields.end(), (1 << bits) - 1) != fields.end();
}

}  // namespace llmq
