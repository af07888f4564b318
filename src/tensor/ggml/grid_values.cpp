#include <bit>
#include <cstddef>
#include <cstring>

#include "base/half.h"
#include "tensor/ggml_grids.h"
#include "tensor/mxfp4.h"

namespace llmq {
namespace {

using GridBytes = const std::uint8_t*;

constexpr std::array<float, 4> kLevels2 = {8, 25, 43, 0};
constexpr std::array<float, 8> kLevels3Xxs = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr std::array<float, 8> kLevels3S = {1, 3, 5, 7, 9, 11, 13, 15};

template <typename T>
T load_from(GridBytes from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

float half_at(GridBytes from) { return to_float(Float16{load_from<std::uint16_t>(from)}); }

// Seven signs and their parity.
unsigned eight_signs(unsigned seven) {
  return seven | (static_cast<unsigned>(std::popcount(seven)) & 1u) << 7;
}

float with_sign(float value, unsigned signs, std::size_t i) {
  return (signs >> i & 1u) != 0 ? -value : value;
}

// Eight numbers from one point, or four.
template <std::size_t kNumbers, std::size_t kLevels>
void point_values(unsigned point, const std::array<float, kLevels>& levels, float scale, unsigned signs,
                  float* into) {
  constexpr unsigned kBits = 16 / kNumbers == 2 ? 2 : 3;
  for (std::size_t i = 0; i < kNumbers; ++i)
    into[i] = with_sign(scale * levels[point >> (kBits * i) & ((1u << kBits) - 1)], signs, i);
}

unsigned nibble(GridBytes from, std::size_t j) { return from[j / 2] >> (j % 2 * 4) & 15u; }

float quarter_scale(float d, unsigned s) { return d * (0.5f + static_cast<float>(s)) * 0.25f; }

void iq2_xxs(GridBytes p, float* into) {
  const float d = half_at(p);
  for (std::size_t sub = 0; sub < 8; ++sub) {
    const GridBytes at = p + 2 + 8 * sub;
    const auto word = load_from<std::uint32_t>(at + 4);
    const float scale = quarter_scale(d, word >> 28);
    for (std::size_t k = 0; k < 4; ++k)
      point_values<8>(kGrid2Xxs[at[k]], kLevels2, scale, eight_signs(word >> 7 * k & 127u),
                      into + 32 * sub + 8 * k);
  }
}

void iq2_xs(GridBytes p, float* into) {
  const float d = half_at(p);
  for (std::size_t k = 0; k < 32; ++k) {
    const unsigned code = load_from<std::uint16_t>(p + 2 + 2 * k);
    point_values<8>(kGrid2Xs[code & 511], kLevels2, quarter_scale(d, nibble(p + 66, k / 2)),
                    eight_signs(code >> 9), into + 8 * k);
  }
}

void iq2_s(GridBytes p, float* into) {
  const float d = half_at(p);
  for (std::size_t k = 0; k < 32; ++k) {
    const unsigned code = p[2 + k] | (p[66 + k / 4] >> (k % 4 * 2) & 3u) << 8;
    point_values<8>(kGrid2S[code], kLevels2, quarter_scale(d, nibble(p + 74, k / 2)), p[34 + k],
                    into + 8 * k);
  }
}

void iq3_xxs(GridBytes p, float* into) {
  const float d = half_at(p);
  for (std::size_t sub = 0; sub < 8; ++sub) {
    const auto word = load_from<std::uint32_t>(p + 66 + 4 * sub);
    const float scale = d * (0.5f + static_cast<float>(word >> 28)) * 0.5f;
    for (std::size_t k = 0; k < 8; ++k)
      point_values<4>(kGrid3Xxs[p[2 + 8 * sub + k]], kLevels3Xxs, scale,
                      eight_signs(word >> 7 * (k / 2) & 127u) >> (k % 2 * 4), into + 32 * sub + 4 * k);
  }
}

void iq3_s(GridBytes p, float* into) {
  const float d = half_at(p);
  for (std::size_t k = 0; k < 64; ++k) {
    const unsigned code = p[2 + k] | (p[66 + k / 8] >> k % 8 & 1u) << 8;
    point_values<4>(kGrid3S[code], kLevels3S, d * static_cast<float>(1 + 2 * nibble(p + 106, k / 8)),
                    static_cast<unsigned>(p[74 + k / 2]) >> (k % 2 * 4), into + 4 * k);
  }
}

// Eight numbers of -1, 0, 1, moved by an eighth.
void moved_point(unsigned code, float scale, bool down, float* into) {
  for (std::size_t i = 0; i < 8; ++i) {
    const auto level = static_cast<float>(static_cast<int>(kGrid1S[code] >> 2 * i & 3) - 1);
    into[i] = scale * (level + (down ? -0.125f : 0.125f));
  }
}

void iq1_s(GridBytes p, float* into) {
  const float d = half_at(p);
  for (std::size_t sub = 0; sub < 8; ++sub) {
    const unsigned high = load_from<std::uint16_t>(p + 34 + 2 * sub);
    const float scale = d * static_cast<float>(2 * (high >> 12 & 7) + 1);
    for (std::size_t k = 0; k < 4; ++k)
      moved_point(p[2 + 4 * sub + k] | (high >> 3 * k & 7u) << 8, scale, (high & 0x8000u) != 0,
                  into + 32 * sub + 8 * k);
  }
}

void iq1_m(GridBytes p, float* into) {
  unsigned bits = 0;  // the F16 in the upper nibbles of four words of scales
  for (std::size_t j = 0; j < 4; ++j) bits |= (load_from<std::uint16_t>(p + 48 + 2 * j) >> 12u) << 4 * j;
  const float d = to_float(Float16{static_cast<std::uint16_t>(bits)});
  for (std::size_t k = 0; k < 32; ++k) {
    const unsigned scales = load_from<std::uint16_t>(p + 48 + k / 8 * 2);
    const float scale = d * static_cast<float>(2 * (scales >> k / 2 % 4 * 3 & 7) + 1);
    const unsigned high = nibble(p + 32, k);
    moved_point(p[k] | (high & 7u) << 8, scale, (high & 8u) != 0, into + 8 * k);
  }
}

// Five digits of base 3 in a byte, as a fraction rounded up: digit k of byte b is 3 (b 3^k mod 256) / 256.
float ternary(std::uint8_t byte, unsigned power) {
  return static_cast<float>(static_cast<int>((byte * power & 255u) * 3 >> 8) - 1);
}

void tq1_0(GridBytes p, float* into) {
  const float d = half_at(p + 52);
  constexpr std::array<unsigned, 5> kPowers = {1, 3, 9, 27, 81};
  const auto run = [&](GridBytes from, std::size_t bytes, std::size_t digits) {
    for (std::size_t k = 0; k < digits; ++k)
      for (std::size_t i = 0; i < bytes; ++i) *into++ = d * ternary(from[i], kPowers[k]);
  };
  run(p, 32, 5);
  run(p + 32, 16, 5);
  run(p + 48, 4, 4);
}

void tq2_0(GridBytes p, float* into) {
  const float d = half_at(p + 64);
  for (std::size_t i = 0; i < 256; ++i)
    into[i] = d * static_cast<float>((p[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3) - 1);
}

void nvfp4(GridBytes p, float scale, float* into) {
  for (std::size_t sub = 0; sub < 4; ++sub) {
    const unsigned byte = p[sub], exponent = byte >> 3 & 15, fraction = byte & 7;
    const float magnitude =
        exponent == 0 ? static_cast<float>(fraction) * 0x1p-9f
                      : static_cast<float>(8 + fraction) * 0x1p-10f * static_cast<float>(1u << exponent);
    // 0x7f is no number in E4M3; no sign is looked at.
    const float level = byte == 0x7f ? 0 : magnitude * scale;
    for (std::size_t j = 0; j < 8; ++j) {
      const std::uint8_t pair = p[4 + 8 * sub + j];
      into[16 * sub + j] = level * (kE2M1[pair & 15u] + 0.0f);  // ggml knows no -0
      into[16 * sub + 8 + j] = level * (kE2M1[pair >> 4] + 0.0f);
    }
  }
}

}  // namespace

bool grid_block_values(DType dtype, const std::uint8_t* block, float* into) {
  switch (dtype) {
    case DType::kIQ2_XXS:
      return iq2_xxs(block, into), true;
    case DType::kIQ2_XS:
      return iq2_xs(block, into), true;
    case DType::kIQ2_S:
      return iq2_s(block, into), true;
    case DType::kIQ3_XXS:
      return iq3_xxs(block, into), true;
    case DType::kIQ3_S:
      return iq3_s(block, into), true;
    case DType::kIQ1_S:
      return iq1_s(block, into), true;
    case DType::kIQ1_M:
      return iq1_m(block, into), true;
    case DType::kTQ1_0:
      return tq1_0(block, into), true;
    case DType::kTQ2_0:
      return tq2_0(block, into), true;
    case DType::kNVFP4:
      return nvfp4(block, 1, into), true;
    default:
      return false;
  }
}

void scaled_values(const TensorView& view, float scale, std::span<float> into) {
  if (view.dtype != DType::kNVFP4) {
    to_float32(view, into);
    for (float& value : into) value *= scale;
    return;
  }
  const DTypeRow& row = dtype_row(view.dtype);
  const auto* block = view.as<const std::uint8_t>();
  for (std::size_t at = 0; at < into.size(); at += static_cast<std::size_t>(row.block_elements)) {
    nvfp4(block, scale, into.data() + at);
    block += row.block_bytes;
  }
}

}  // namespace llmq
