#include "tensor/ggml_blocks.h"

#include <cstring>

#include "base/error.h"

namespace llmq {
namespace {

using Bytes = const std::uint8_t*;
using Codes = std::array<std::uint8_t, 256>;

Float16 load_float16(Bytes from) {
  Float16 half;
  std::memcpy(&half.bits, from, sizeof half.bits);
  return half;
}

// Where the bits of element i are in a plane.
struct PlaneBits {
  int byte, shift;
};
constexpr PlaneBits plane_bits(const BitPlane& plane, int i) {
  const int depth = 8 / plane.bits;
  return {plane.at + i / (plane.run * depth) * plane.run + i % plane.run, i / plane.run % depth * plane.bits};
}

// Q8_0 stores its codes as two's complement, q - 128.
constexpr int sign_flip(const BlockLayout& layout) { return layout.bits() == 8 ? 0x80 : 0; }

// Layouts are template arguments so that the divisions become shifts.
template <const BlockLayout& kLayout>
void read_codes(Bytes block, Codes& q) {
  for (int i = 0; i < kLayout.elements; ++i) {
    const PlaneBits low = plane_bits(kLayout.low, i);
    int code = block[low.byte] >> low.shift & ((1 << kLayout.low.bits) - 1);
    if constexpr (kLayout.high.bits > 0) {
      const PlaneBits high = plane_bits(kLayout.high, i);
      code |= (block[high.byte] >> high.shift & ((1 << kLayout.high.bits) - 1)) << kLayout.low.bits;
    }
    q[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(code ^ sign_flip(kLayout));
  }
}

template <const BlockLayout& kLayout>
void write_codes(const Codes& q, std::uint8_t* block) {
  const auto add = [block](PlaneBits where, int bits) {
    block[where.byte] = static_cast<std::uint8_t>(block[where.byte] | bits << where.shift);
  };
  for (int i = 0; i < kLayout.elements; ++i) {
    const int code = q[static_cast<std::size_t>(i)] ^ sign_flip(kLayout);
    add(plane_bits(kLayout.low, i), code & ((1 << kLayout.low.bits) - 1));
    if constexpr (kLayout.high.bits > 0) add(plane_bits(kLayout.high, i), code >> kLayout.low.bits);
  }
}

template <typename Visit>
void visit_layout(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kQ4_0:
      return visit.template operator()<kQ4_0>();
    case DType::kQ4_1:
      return visit.template operator()<kQ4_1>();
    case DType::kQ5_0:
      return visit.template operator()<kQ5_0>();
    case DType::kQ5_1:
      return visit.template operator()<kQ5_1>();
    case DType::kQ8_0:
      return visit.template operator()<kQ8_0>();
    case DType::kQ2_K:
      return visit.template operator()<kQ2_K>();
    case DType::kQ3_K:
      return visit.template operator()<kQ3_K>();
    case DType::kQ4_K:
      return visit.template operator()<kQ4_K>();
    case DType::kQ5_K:
      return visit.template operator()<kQ5_K>();
    case DType::kQ6_K:
      return visit.template operator()<kQ6_K>();
    case DType::kIQ4_NL:
      return visit.template operator()<kIQ4_NL>();
    case DType::kIQ4_XS:
      return visit.template operator()<kIQ4_XS>();
    default:
      return;
  }
}

void read_scale_codes(ScaleCodes kind, Bytes p, BlockFields& fields) {
  auto& s = fields.s;
  auto& t = fields.t;
  switch (kind) {
    case ScaleCodes::kNone:
      s[0] = 1;
      t[0] = -1;
      return;
    case ScaleCodes::kNibblePairs:
      for (std::size_t j = 0; j < 16; ++j) {
        s[j] = p[j] & 15;
        t[j] = p[j] >> 4;
      }
      return;
    case ScaleCodes::kSigned6:
      for (std::size_t j = 0; j < 16; ++j)
        s[j] = ((p[j % 8] >> (j / 8 * 4) & 15) | (p[8 + j % 4] >> (j / 4 * 2) & 3) << 4) - 32;
      return;
    case ScaleCodes::kPairs6:
      for (std::size_t j = 0; j < 4; ++j) {
        s[j] = p[j] & 63;
        t[j] = p[j + 4] & 63;
        s[j + 4] = (p[j + 8] & 15) | (p[j] >> 6) << 4;
        t[j + 4] = (p[j + 8] >> 4) | (p[j + 4] >> 6) << 4;
      }
      return;
    case ScaleCodes::kSigned8:
      for (std::size_t j = 0; j < 16; ++j) s[j] = int{static_cast<std::int8_t>(p[j])};
      return;
    case ScaleCodes::kSplit6:
      for (std::size_t j = 0; j < 8; ++j)
        s[j] = ((p[2 + j / 2] >> (j % 2 * 4) & 15) | (p[j / 4] >> (j % 4 * 2) & 3) << 4) - 32;
      return;
  }
}

void write_scale_codes(ScaleCodes kind, const BlockFields& fields, std::uint8_t* p) {
  const auto& s = fields.s;
  const auto& t = fields.t;
  const auto add = [p](std::size_t byte, int bits) { p[byte] = static_cast<std::uint8_t>(p[byte] | bits); };
  switch (kind) {
    case ScaleCodes::kNone:
      return;
    case ScaleCodes::kNibblePairs:
      for (std::size_t j = 0; j < 16; ++j) add(j, s[j] | t[j] << 4);
      return;
    case ScaleCodes::kSigned6:
      for (std::size_t j = 0; j < 16; ++j) {
        const int code = s[j] + 32;
        add(j % 8, (code & 15) << (j / 8 * 4));
        add(8 + j % 4, code >> 4 << (j / 4 * 2));
      }
      return;
    case ScaleCodes::kPairs6:
      for (std::size_t j = 0; j < 4; ++j) {
        add(j, s[j] | s[j + 4] >> 4 << 6);
        add(j + 4, t[j] | t[j + 4] >> 4 << 6);
        add(j + 8, (s[j + 4] & 15) | (t[j + 4] & 15) << 4);
      }
      return;
    case ScaleCodes::kSigned8:
      for (std::size_t j = 0; j < 16; ++j) add(j, s[j] & 255);
      return;
    case ScaleCodes::kSplit6:
      for (std::size_t j = 0; j < 8; ++j) {
        add(2 + j / 2, ((s[j] + 32) & 15) << (j % 2 * 4));
        add(j / 4, (s[j] + 32) >> 4 << (j % 4 * 2));
      }
      return;
  }
}

}  // namespace

const BlockLayout* block_layout(DType dtype) {
  const BlockLayout* layout = nullptr;
  visit_layout(dtype, [&]<const BlockLayout & kLayout>() { layout = &kLayout; });
  return layout;
}

BlockFields read_block(const BlockLayout& layout, Bytes bytes) {
  BlockFields fields;
  fields.d = load_float16(bytes + layout.scale_at);
  if (layout.has_minimum()) fields.m = load_float16(bytes + layout.minimum_at);
  read_scale_codes(layout.scale_codes, bytes + layout.codes_at, fields);
  visit_layout(layout.dtype, [&]<const BlockLayout & kLayout>() { read_codes<kLayout>(bytes, fields.q); });
  return fields;
}

void write_block(const BlockLayout& layout, const BlockFields& fields, std::uint8_t* bytes) {
  std::memset(bytes, 0, static_cast<std::size_t>(dtype_row(layout.dtype).block_bytes));
  std::memcpy(bytes + layout.scale_at, &fields.d.bits, sizeof fields.d.bits);
  if (layout.has_minimum()) std::memcpy(bytes + layout.minimum_at, &fields.m.bits, sizeof fields.m.bits);
  write_scale_codes(layout.scale_codes, fields, bytes + layout.codes_at);
  visit_layout(layout.dtype, [&]<const BlockLayout & kLayout>() { write_codes<kLayout>(fields.q, bytes); });
}

void block_values(const BlockLayout& layout, const BlockFields& fields, float* w) {
  const float d = to_float(fields.d), m = to_float(fields.m);
  for (int j = 0; j < layout.sub_blocks(); ++j) {
    const auto sub = static_cast<std::size_t>(j);
    const float scale = d * static_cast<float>(fields.s[sub]),
                minimum = m * static_cast<float>(fields.t[sub]);
    const int first = j * layout.sub_block;
    const std::uint8_t* const q = fields.q.data() + first;
    float* const into = w + first;
    if (layout.has_minimum()) {
      for (int i = 0; i < layout.sub_block; ++i) into[i] = scale * static_cast<float>(q[i]) - minimum;
    } else if (layout.values != nullptr) {
      for (int i = 0; i < layout.sub_block; ++i) into[i] = scale * static_cast<float>((*layout.values)[q[i]]);
    } else {
      for (int i = 0; i < layout.sub_block; ++i) into[i] = scale * static_cast<float>(q[i] - layout.zero);
    }
  }
}

}  // namespace llmq
