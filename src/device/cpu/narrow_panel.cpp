#include "device/cpu/narrow_panel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/half.h"
#include "tensor/block_scales.h"
#include "tensor/mxfp4.h"

namespace llmq {
namespace {

constexpr std::int64_t kMostUnit = narrow_unit(5);

bool holds_all(const QuantizedMatrix& matrix, bool (*exact)(float)) {
  return std::all_of(matrix.scales.begin(), matrix.scales.end(), exact) &&
         std::all_of(matrix.minima.begin(), matrix.minima.end(), exact);
}

// Of codes of a book, or of integers with or without zeros (kernels/cpu/ops/narrow_codes.h: what kernels look
// for beside each).
ScaleFormat format_of_scales(const QuantizedMatrix& matrix, bool book, bool zeros) {
  if (book && has_scale_bytes(matrix))
    return matrix.scheme.scale_form() == ScaleForm::kExponent ? ScaleFormat::kExponents
                                                              : ScaleFormat::kLevels;
  const ScaleFactors& factors = matrix.factors;
  if (!zeros && factors.together > 0 && matrix.groups() % factors.together == 0) {
    const auto is_nibble = [](auto value) { return value >= 0 && value < 16; };
    return !matrix.minima.empty() && std::all_of(factors.s.begin(), factors.s.end(), is_nibble) &&
                   std::all_of(factors.t.begin(), factors.t.end(), is_nibble)
               ? ScaleFormat::kNibbles
               : ScaleFormat::kFactors;
  }
  if (holds_all(matrix, [](float s) { return to_float(to_bfloat16(s)) == s; })) return ScaleFormat::kBF16;
  if (holds_all(matrix, [](float s) { return to_float(to_float16(s)) == s; })) return ScaleFormat::kF16;
  return ScaleFormat::kF32;
}

ScaleFormat number_format(DType dtype) {
  return dtype == DType::kBF16  ? ScaleFormat::kBF16
         : dtype == DType::kF16 ? ScaleFormat::kF16
                                : ScaleFormat::kF32;
}

// The integers that a weight of 8-bit codes has, if they are sixteen at most (a table's, as GGUF has them).
std::optional<CodeBook> book_of_integers(const QuantizedMatrix& matrix,
                                         std::array<std::uint8_t, 256>& place) {
  if (matrix.scheme.bits != 8 || !matrix.scheme.symmetric || !matrix.minima.empty()) return std::nullopt;
  std::array<bool, 256> there{};
  std::size_t count = 0;
  CodeBook book{};
  for (const std::uint8_t code : matrix.codes) {
    if (there[code]) continue;
    if (count == std::size(book.values)) return std::nullopt;
    there[code] = true;
    place[code] = static_cast<std::uint8_t>(count);
    book.values[count++] = static_cast<float>(code - matrix.scheme.middle());
  }
  return book;
}

std::optional<CodeBook> book_of(const QuantizedMatrix& matrix, std::array<std::uint8_t, 256>& place) {
  std::optional<CodeBook> book;
  if (matrix.code_values || matrix.scheme.weight_type == WeightType::kFloat4) {
    book.emplace();
    const auto& values = matrix.code_values ? matrix.code_values->values : kE2M1;
    std::copy(values.begin(), values.end(), book->values);
    if (matrix.code_values) book->rounded = number_format(matrix.code_values->rounded_to);
    for (std::size_t code = 0; code < place.size(); ++code) place[code] = code & 15;
  } else if (matrix.group() % kNarrowBlock == 0) {
    book = book_of_integers(matrix, place);
  }
  if (!book) return book;
  for (std::size_t i = 0; i < std::size(book->words); ++i) {
    book->words[i] = to_bfloat16(book->values[i % 16]);
    book->nearest[i % 16] = to_float(book->words[i]);
  }
  return book;
}

int stored_bits(const QuantizedMatrix& matrix) {
  const int bits = matrix.scheme.bits;
  const bool in_units =
      (matrix.scheme.symmetric || !matrix.minima.empty()) && matrix.group() % narrow_unit(bits) == 0;
  if (in_units && (bits == 2 || bits == 3 || bits == 5 || bits == 6)) return bits;
  return bits <= 4 ? 4 : 8;
}

void write_number(unsigned char* numbers, std::int64_t n, ScaleFormat format, float value) {
  if (format == ScaleFormat::kF32) {
    std::memcpy(numbers + 4 * n, &value, sizeof value);
    return;
  }
  const std::uint16_t bits = format == ScaleFormat::kBF16 ? to_bfloat16(value).bits : to_float16(value).bits;
  std::memcpy(numbers + 2 * n, &bits, sizeof bits);
}

// Eight codes below 16, a byte each, as a word: the even ones in its low half.
std::uint32_t word_of_eight(std::uint64_t codes) {
  const auto gathered = [](std::uint64_t even) {
    return static_cast<std::uint32_t>((even | even >> 12 | even >> 24 | even >> 36) & 0xffffu);
  };
  constexpr std::uint64_t kEven = 0x000f000f000f000full;
  return gathered(codes & kEven) | gathered((codes >> 8) & kEven) << 16;
}

std::uint32_t quads_of_eight(std::uint64_t codes) { return static_cast<std::uint32_t>(codes | codes >> 28); }

// The words of a unit of one column, from its codes.
struct UnitWriter {
  unsigned char* unit;
  std::int64_t panel, n;
  bool quads;

  // half(0) and half(1) give the low and the high 16 bits.
  template <class Half>
  void word(std::int64_t index, const Half& half) const {
    const std::uint32_t bits = half(0) | half(1) << 16;
    std::memcpy(unit + (index * panel + n) * 4, &bits, sizeof bits);
  }

  void write(int bits, const std::uint8_t* codes) const {
    const auto at = [&](std::uint32_t odd, int pair) {
      return std::uint32_t{codes[2 * pair + static_cast<int>(odd)]};
    };
    switch (bits) {
      case 2:
        return word(0,
                    [&](std::uint32_t odd) { return joined(8, [&](int j) { return at(odd, j) << 2 * j; }); });
      case 3:
        word(0,
             [&](std::uint32_t odd) { return joined(8, [&](int j) { return (at(odd, j) & 3) << 2 * j; }); });
        for (std::uint32_t odd = 0; odd < 2; ++odd)
          unit[4 * panel + 2 * n + odd] =
              static_cast<unsigned char>(joined(8, [&](int j) { return at(odd, j) >> 2 << j; }));
        return;
      case 4: {  // most weights, and what loading one waits for
        std::uint64_t eight;
        std::memcpy(&eight, codes, sizeof eight);
        const std::uint32_t packed = quads ? quads_of_eight(eight) : word_of_eight(eight);
        std::memcpy(unit + n * 4, &packed, sizeof packed);
        return;
      }
      case 5:
        for (int i = 0; i < 5; ++i)
          word(i, [&](std::uint32_t odd) {
            return joined(3, [&](int j) { return at(odd, 3 * i + j) << 5 * j; }) | (at(odd, 15) >> i & 1)
                                                                                       << 15;
          });
        return;
      case 6:
        for (int i = 0; i < 3; ++i)
          word(i, [&](std::uint32_t odd) {
            const std::uint32_t two = at(odd, 2 * i) | at(odd, 2 * i + 1) << 6;
            return two | (i == 1 ? at(odd, 6) >> 4 << 12 | at(odd, 7) >> 4 << 14
                                 : (at(odd, i == 0 ? 6 : 7) & 15) << 12);
          });
        return;
      default:
        for (std::int64_t i = 0; i < kNarrowBlock; ++i) unit[i * panel + n] = codes[i];
    }
  }

 private:
  template <class Part>
  static std::uint32_t joined(int count, const Part& part) {
    std::uint32_t bits = 0;
    for (int j = 0; j < count; ++j) bits |= part(j);
    return bits;
  }
};

// One panel of a matrix.
struct PanelWriter {
  unsigned char* at;
  const NarrowForm& form;
  const NarrowLayout& layout;
  const QuantizedMatrix& matrix;
  std::int64_t panel;

  // The FP16 numbers of one column.
  void factors(std::int64_t n, std::int64_t row) const {
    const std::int64_t blocks = layout.groups / layout.together;
    for (std::int64_t b = 0; b < blocks; ++b) {
      const auto index = static_cast<std::size_t>(row * blocks + b);
      unsigned char* const to = at + layout.factor_bytes(panel, b * layout.together);
      std::memcpy(to + 2 * n, &matrix.factors.d[index].bits, 2);
      if (layout.minima) std::memcpy(to + 2 * (panel + n), &matrix.factors.m[index].bits, 2);
    }
  }

  // One group of one column.
  void group(std::int64_t n, std::int64_t row, std::int64_t g) const {
    unsigned char* const header =
        at + layout.factor_bytes(panel, layout.groups) + g * layout.group_bytes(panel);
    const auto index = static_cast<std::size_t>(row * layout.groups + g);
    scale(header, n, index);
    // Codes with a minimum and those of units lie as they are (ops/narrow_codes.h).
    const int zero = matrix.zeros[index];
    const bool as_they_are = layout.minima || (layout.bits != 4 && layout.bits != 8);
    const int middle = as_they_are ? zero : layout.bits == 4 ? 8 : 0;
    // What is added to a code as it is stored; the zero then reads as layout.zeros says.
    const int shift = layout.zeros ? (layout.bits == 4 ? 0 : -128) : middle - zero;
    unsigned char* const codes = header + layout.header_bytes(panel);
    if (layout.zeros) (codes - panel)[n] = static_cast<unsigned char>(zero + shift);
    const std::int64_t unit = narrow_unit(layout.bits), group = matrix.group();
    const std::uint8_t* const from = matrix.codes.data() + row * matrix.in_features + g * group;
    for (std::int64_t k = 0; k < layout.group; k += unit) {
      std::uint8_t some[kMostUnit];
      const std::int64_t there = std::min(unit, group - k);
      std::memcpy(some, from + k, static_cast<std::size_t>(there));
      std::memset(some + there, zero, static_cast<std::size_t>(unit - there));
      if (form.book)
        for (std::int64_t i = 0; i < unit; ++i) some[i] = form.place[some[i]];
      else if (shift != 0)
        for (std::int64_t i = 0; i < unit; ++i) some[i] = static_cast<std::uint8_t>(some[i] + shift);
      UnitWriter{codes + k * panel * layout.bits / 8, panel, n, layout.quads}.write(layout.bits, some);
    }
  }

 private:
  void scale(unsigned char* header, std::int64_t n, std::size_t index) const {
    const ScaleFactors& factors = matrix.factors;
    if (layout.scales == ScaleFormat::kLevels || layout.scales == ScaleFormat::kExponents) {
      header[n] = scale_byte(matrix, index);
    } else if (layout.scales == ScaleFormat::kNibbles) {
      header[n] = static_cast<unsigned char>(factors.s[index] | factors.t[index] << 4);
    } else if (layout.scales == ScaleFormat::kFactors) {
      header[n] = static_cast<unsigned char>(factors.s[index]);
      if (layout.minima) header[panel + n] = factors.t[index];
    } else {
      write_number(header, n, layout.scales, matrix.scales[index]);
      if (layout.minima)
        write_number(header + panel * layout.scale_bytes(), n, layout.scales, matrix.minima[index]);
    }
  }
};

}  // namespace

NarrowForm narrow_form(const QuantizedMatrix& matrix, CodeOrder order) {
  NarrowForm form;
  NarrowLayout& layout = form.layout;
  form.book = book_of(matrix, form.place);
  layout.quads = order == CodeOrder::kQuads;
  layout.bits = form.book || layout.quads ? 4 : stored_bits(matrix);
  layout.minima = !matrix.minima.empty();
  layout.zeros = !matrix.scheme.symmetric && !layout.minima;
  layout.scales = format_of_scales(matrix, form.book.has_value(), layout.zeros);
  layout.groups = matrix.groups();
  layout.group = (matrix.group() + kNarrowBlock - 1) / kNarrowBlock * kNarrowBlock;
  if (layout.has_factors()) layout.together = matrix.factors.together;
  if (layout.scales == ScaleFormat::kLevels) {
    layout.global = matrix.global_scale;
    layout.divides = matrix.global_form == GlobalForm::kDivisor;
    layout.level_unit = level_factor(matrix) * kLevelBits;
  }
  return form;
}

void write_narrow_panel(unsigned char* at, const NarrowForm& form, const QuantizedMatrix& matrix,
                        std::int64_t panel, std::int64_t first, std::int64_t rows) {
  const NarrowLayout& layout = form.layout;
  if (rows < panel) std::memset(at, 0, static_cast<std::size_t>(layout.panel_bytes(panel)));
  const PanelWriter writer{at, form, layout, matrix, panel};
  if (layout.has_factors())
    for (std::int64_t n = 0; n < rows; ++n) writer.factors(n, first + n);
  for (std::int64_t g = 0; g < layout.groups; ++g)
    for (std::int64_t n = 0; n < rows; ++n) writer.group(n, first + n, g);
}

}  // namespace llmq
