// Codes of few bits as pairs of BF16 numbers, by AVX-512's permutations of words: for products of pairs, and
// for the order of sums that tiles have (kernels/cpu/amx/few_rows.cpp).
#pragma once
#include "kernels/cpu/avx512/vector.h"
#include "kernels/cpu/ops/narrow_codes.h"

namespace llmq {
namespace {

// Four bits: code - zero, modulo 32, looks its BF16 up in a table of 32, which a
// permutation of words is; of an index it sees the low five bits alone. With the zero 8 the table has every
// entry twice, so that the fifth bit, the next code's first, does not matter and nothing is masked; 2 and 3
// bits have theirs eight and four times. Six bits take two tables.
struct PairCodes {
  using B = __m512i;
  using Zero = __m512i;
  template <int Bits>
  static LLMQ_INLINE Zero middle() {
    return _mm512_setzero_si512();  // the tables have it
  }
  static LLMQ_INLINE Zero zero4(const unsigned char* at) {
    return _mm512_mullo_epi32(Avx512::load_u8(at), _mm512_set1_epi32(0x01010101));
  }
  static LLMQ_INLINE Zero zero8(const unsigned char* at) { return Avx512::load_i8(at); }
  static LLMQ_INLINE __m512i book(const CodeBook& book) { return _mm512_load_si512(book.words); }

  // The 32 numbers (i + Turn) % Period + First as BF16, which holds them all.
  struct Numbers {
    alignas(64) uint16_t bits[32];
  };
  template <int Period, int First, int Turn = 0>
  static LLMQ_INLINE __m512i table() {
    static constexpr Numbers kNumbers = [] {
      Numbers numbers{};
      for (int i = 0; i < 32; ++i)
        numbers.bits[i] = static_cast<uint16_t>(
            __builtin_bit_cast(uint32_t, static_cast<float>((i + Turn) % Period + First)) >> 16);
      return numbers;
    }();
    return _mm512_load_si512(kNumbers.bits);
  }
  static LLMQ_INLINE __m512i signed_table() { return table<32, -16, 16>(); }  // 0 .. 15, -16 .. -1
  template <int Bits>
  static LLMQ_INLINE __m512i middle_table() {
    return table<1 << Bits, -(1 << (Bits - 1))>();
  }
  template <CodeForm Form>
  static LLMQ_INLINE void expand4(B (&out)[4], const unsigned char* at, Zero zero) {
    const __m512i words = _mm512_loadu_si512(at);
    if constexpr (Form == CodeForm::kZeros) {
      const __m512i nibbles = _mm512_set1_epi32(0x0f0f0f0f), table = signed_table();
      const __m512i even = _mm512_sub_epi8(_mm512_and_si512(words, nibbles), zero);
      const __m512i odd = _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi32(words, 4), nibbles), zero);
      out[0] = _mm512_permutexvar_epi16(even, table);
      out[1] = _mm512_permutexvar_epi16(odd, table);
      out[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(even, 8), table);
      out[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(odd, 8), table);
    } else {
      const __m512i table = Form == CodeForm::kBook ? zero : middle_table<4>();
      out[0] = _mm512_permutexvar_epi16(words, table);
      out[1] = _mm512_permutexvar_epi16(_mm512_srli_epi32(words, 4), table);
      out[2] = _mm512_permutexvar_epi16(_mm512_srli_epi32(words, 8), table);
      out[3] = _mm512_permutexvar_epi16(_mm512_srli_epi32(words, 12), table);
    }
  }
  template <CodeForm Form>
  static LLMQ_INLINE B pair8(const unsigned char* even, const unsigned char* odd, Zero zero) {
    __m512i low = Avx512::load_i8(even), high = Avx512::load_i8(odd);
    if constexpr (Form == CodeForm::kZeros)
      low = _mm512_sub_epi32(low, zero), high = _mm512_sub_epi32(high, zero);
    return Avx512::pair_bits(_mm512_cvtepi32_ps(low), _mm512_cvtepi32_ps(high));
  }
  template <int Bits, int J>
  static LLMQ_INLINE B pair(const NarrowWords<Avx512, Bits>& words, Zero) {
    const __m512i index = narrow_index<Bits, J, Both>(words);
    if constexpr (Bits == 6) {
      return _mm512_permutex2var_epi16(table<32, -32>(), index, table<32, 0>());
    } else {
      return _mm512_permutexvar_epi16(index, middle_table<Bits>());
    }
  }
  static LLMQ_INLINE void store(unsigned char* p, B pair) { _mm512_storeu_si512(p, pair); }

 private:
  // Both halves of a word at once; whatever stands above an index is not looked at.
  struct Both {
    template <int Shift, int Bits>
    static LLMQ_INLINE __m512i whole(__m512i word) {
      if constexpr (Shift == 0)
        return word;
      else
        return _mm512_srli_epi16(word, Shift);
    }
    template <int Shift, int Mask>
    static LLMQ_INLINE __m512i part(__m512i word) {
      return _mm512_and_si512(_mm512_srli_epi16(word, Shift), _mm512_set1_epi16(Mask));
    }
    template <int J>
    static LLMQ_INLINE __m512i with_third_bit(__m512i low, __m512i high) {
      constexpr int kLowElseHigh = 0xe4;  // by the third: the first, else the second
      const __m512i third =
          J < 2 ? _mm512_slli_epi16(high, J < 2 ? 2 - J : 0) : _mm512_srli_epi16(high, J < 2 ? 0 : J - 2);
      return _mm512_ternarylogic_epi32((whole<2 * J, 2>(low)), third, _mm512_set1_epi16(3), kLowElseHigh);
    }
    static LLMQ_INLINE __m512i join(__m512i a, __m512i b) { return _mm512_or_si512(a, b); }
  };
};

}  // namespace
}  // namespace llmq
