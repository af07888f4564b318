// AVX-512 with BF16 and VNNI: vdpbf16ps adds two products per lane and treats denormals as zero, in and out;
// vpdpbusd adds four.
#include "kernels/cpu/avx512/vector.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/ops/kernel_table.h"

namespace llmq {
namespace {

struct ProductPairs {
  static constexpr int kPerUnit = 2;
  static constexpr bool kOneInstruction = true;
  using B = __m512i;
  static LLMQ_INLINE B load(const unsigned char* at) { return _mm512_loadu_si512(at); }
  static LLMQ_INLINE B broadcast(uint32_t unit) { return _mm512_set1_epi32(static_cast<int>(unit)); }
  static LLMQ_INLINE __m512 add(__m512 acc, B a, B b) {
    return _mm512_dpbf16_ps(acc, __builtin_bit_cast(__m512bh, a), __builtin_bit_cast(__m512bh, b));
  }
  // The conversion flushes denormals, as the product does: nothing is lost that it would have seen.
  static LLMQ_INLINE void store(BFloat16* p, __m512 v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), __builtin_bit_cast(__m256i, _mm512_cvtneps_pbh(v)));
  }
};

struct ProductQuads {
  static constexpr int kPerUnit = 4;
  static constexpr bool kOneInstruction = true;
  using B = __m512i;
  static LLMQ_INLINE B load(const unsigned char* at) { return _mm512_loadu_si512(at); }
  static LLMQ_INLINE B broadcast(uint32_t unit) { return _mm512_set1_epi32(static_cast<int>(unit)); }
  static LLMQ_INLINE __m512i add(__m512i acc, B a, B b) { return _mm512_dpbusd_epi32(acc, b, a); }
};

// Codes as BF16 pairs. Four bits: code - zero, modulo 32, looks its BF16 up in a table of 32, which a
// permutation of words is; of an index it sees the low five bits alone. With the zero 8 the table has every
// entry twice, so that the fifth bit, the next code's first, does not matter and nothing is masked.
struct PairCodes {
  using B = __m512i;
  using Zero = __m512i;
  static LLMQ_INLINE Zero middle4() { return _mm512_setzero_si512(); }  // never looked at
  static LLMQ_INLINE Zero zero4(const unsigned char* at) {
    return _mm512_mullo_epi32(Avx512::load_u8(at), _mm512_set1_epi32(0x01010101));
  }
  static LLMQ_INLINE Zero middle8() { return _mm512_setzero_si512(); }
  static LLMQ_INLINE Zero zero8(const unsigned char* at) { return Avx512::load_i8(at); }

  static LLMQ_INLINE uint32_t two(float low, float high) {
    return bits_from_float(low) >> 16 | (bits_from_float(high) & 0xffff0000u);
  }
  static LLMQ_INLINE __m512i signed_table() {  // 0 .. 15, -16 .. -1
    return _mm512_setr_epi32(
        static_cast<int>(two(0, 1)), static_cast<int>(two(2, 3)), static_cast<int>(two(4, 5)),
        static_cast<int>(two(6, 7)), static_cast<int>(two(8, 9)), static_cast<int>(two(10, 11)),
        static_cast<int>(two(12, 13)), static_cast<int>(two(14, 15)), static_cast<int>(two(-16, -15)),
        static_cast<int>(two(-14, -13)), static_cast<int>(two(-12, -11)), static_cast<int>(two(-10, -9)),
        static_cast<int>(two(-8, -7)), static_cast<int>(two(-6, -5)), static_cast<int>(two(-4, -3)),
        static_cast<int>(two(-2, -1)));
  }
  static LLMQ_INLINE __m512i middle_table() {  // -8 .. 7, twice
    return _mm512_setr_epi32(
        static_cast<int>(two(-8, -7)), static_cast<int>(two(-6, -5)), static_cast<int>(two(-4, -3)),
        static_cast<int>(two(-2, -1)), static_cast<int>(two(0, 1)), static_cast<int>(two(2, 3)),
        static_cast<int>(two(4, 5)), static_cast<int>(two(6, 7)), static_cast<int>(two(-8, -7)),
        static_cast<int>(two(-6, -5)), static_cast<int>(two(-4, -3)), static_cast<int>(two(-2, -1)),
        static_cast<int>(two(0, 1)), static_cast<int>(two(2, 3)), static_cast<int>(two(4, 5)),
        static_cast<int>(two(6, 7)));
  }
  template <bool HasZeros>
  static LLMQ_INLINE void expand4(B (&out)[4], const unsigned char* at, Zero zero) {
    const __m512i words = _mm512_loadu_si512(at);
    if constexpr (HasZeros) {
      const __m512i nibbles = _mm512_set1_epi32(0x0f0f0f0f), table = signed_table();
      const __m512i even = _mm512_sub_epi8(_mm512_and_si512(words, nibbles), zero);
      const __m512i odd = _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi32(words, 4), nibbles), zero);
      out[0] = _mm512_permutexvar_epi16(even, table);
      out[1] = _mm512_permutexvar_epi16(odd, table);
      out[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(even, 8), table);
      out[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(odd, 8), table);
    } else {
      const __m512i table = middle_table();
      out[0] = _mm512_permutexvar_epi16(words, table);
      out[1] = _mm512_permutexvar_epi16(_mm512_srli_epi32(words, 4), table);
      out[2] = _mm512_permutexvar_epi16(_mm512_srli_epi32(words, 8), table);
      out[3] = _mm512_permutexvar_epi16(_mm512_srli_epi32(words, 12), table);
    }
  }
  template <bool HasZeros>
  static LLMQ_INLINE B pair8(const unsigned char* even, const unsigned char* odd, Zero zero) {
    __m512i low = Avx512::load_i8(even), high = Avx512::load_i8(odd);
    if constexpr (HasZeros) low = _mm512_sub_epi32(low, zero), high = _mm512_sub_epi32(high, zero);
    return Avx512::pair_bits(_mm512_cvtepi32_ps(low), _mm512_cvtepi32_ps(high));
  }
  static LLMQ_INLINE void store(unsigned char* p, B pair) { _mm512_storeu_si512(p, pair); }
};

}  // namespace

extern const CpuKernels kAvx512Bf16Kernels =
    kernel_table<Avx512, ProductPairs, ProductQuads, PairCodes>("avx512_bf16");

}  // namespace llmq
