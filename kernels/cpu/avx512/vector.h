// AVX-512 (F, BW, DQ, VL): 16 floats, 8 doubles; register tiles of 12 rows x 32 columns (24 of 32 registers
// accumulate).
#pragma once
#include <immintrin.h>
#include <stdint.h>

#include "base/half.h"

namespace llmq {
namespace {

struct Avx512 {
  static constexpr int kLanes = 16, kDoubles = 8, kPanelVectors = 2, kRowTile = 12;
  using F = __m512;
  using D = __m512d;
  static LLMQ_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static LLMQ_INLINE F set(float v) { return _mm512_set1_ps(v); }
  static LLMQ_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
  static LLMQ_INLINE void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static LLMQ_INLINE F load_first(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
  static LLMQ_INLINE void store_first(float* p, F v, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }
  static LLMQ_INLINE F load_bf16(const BFloat16* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  // to_bfloat16 for each lane: nearest even, NaN made quiet, denormals kept (the conversion instruction would
  // flush them).
  static LLMQ_INLINE void store_bf16(BFloat16* p, F v) {
    const __m512i x = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(0x7fff)), odd);
    const __m512i quiet = _mm512_or_si512(x, _mm512_set1_epi32(0x400000));
    const __m512i chosen = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), rounded, quiet);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16)));
  }
  static LLMQ_INLINE F even_bf16(const void* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
  }
  static LLMQ_INLINE F odd_bf16(const void* p) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static LLMQ_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static LLMQ_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
  static LLMQ_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static LLMQ_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static LLMQ_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
  static LLMQ_INLINE F sqrt(F a) { return _mm512_sqrt_ps(a); }
  static LLMQ_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
  static LLMQ_INLINE F min(F a, F b) { return _mm512_min_ps(a, b); }
  static LLMQ_INLINE F zero_where_less(F x, F limit, F v) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), v);
  }
  static LLMQ_INLINE F power_of_two(F shifted) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_add_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(127)), 23));
  }
  static LLMQ_INLINE F scale_where_not_less(F x, F limit, F p, F n, F) {
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), p, n);
  }
  static LLMQ_INLINE bool any_greater(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
  static LLMQ_INLINE bool any_equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ) != 0; }
  static LLMQ_INLINE float sum(F v) { return _mm512_reduce_add_ps(v); }
  static LLMQ_INLINE float greatest(F v) { return _mm512_reduce_max_ps(v); }
  static LLMQ_INLINE float first(F v) { return _mm512_cvtss_f32(v); }

  using I = __m512i;
  static LLMQ_INLINE I zeroi() { return _mm512_setzero_si512(); }
  static LLMQ_INLINE I loadi(const void* p) { return _mm512_loadu_si512(p); }
  static LLMQ_INLINE void storei(void* p, I v) { _mm512_storeu_si512(p, v); }
  static LLMQ_INLINE I loadi_first(const void* p, int n) {
    return _mm512_maskz_loadu_epi32(first_lanes(n), p);
  }
  static LLMQ_INLINE void storei_first(void* p, I v, int n) {
    _mm512_mask_storeu_epi32(p, first_lanes(n), v);
  }
  static LLMQ_INLINE I addi(I a, I b) { return _mm512_add_epi32(a, b); }
  static LLMQ_INLINE I even_bytes(const void* p) {
    return _mm512_and_si512(loadi(p), _mm512_set1_epi32(0x00ff00ff));
  }
  static LLMQ_INLINE I odd_bytes(const void* p) { return _mm512_srli_epi16(loadi(p), 8); }
  static LLMQ_INLINE I set_even_bytes(uint32_t unit) {
    return _mm512_srai_epi16(_mm512_slli_epi16(_mm512_set1_epi32(static_cast<int>(unit)), 8), 8);
  }
  static LLMQ_INLINE I set_odd_bytes(uint32_t unit) {
    return _mm512_srai_epi16(_mm512_set1_epi32(static_cast<int>(unit)), 8);
  }
  static LLMQ_INLINE I pair_products(I a, I b) { return _mm512_madd_epi16(a, b); }
  // Products of four bytes, unsigned by signed, as two halves of their sum; and what halves come to.
  using Halves = int16_t __attribute__((vector_size(64)));
  static LLMQ_INLINE Halves byte_products(I codes, I inputs) {
    return __builtin_bit_cast(Halves, _mm512_maddubs_epi16(codes, inputs));
  }
  static LLMQ_INLINE I sum_of_halves(Halves v) {
    return _mm512_madd_epi16(__builtin_bit_cast(I, v), _mm512_set1_epi16(1));
  }
  static LLMQ_INLINE void store_int8(int8_t* p, F v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v)));
  }

  // INT32 lanes out of bytes and codes, and back to numbers.
  static LLMQ_INLINE I load_u8(const void* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static LLMQ_INLINE I load_i8(const void* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static LLMQ_INLINE I seti(int v) { return _mm512_set1_epi32(v); }
  static LLMQ_INLINE I subi(I a, I b) { return _mm512_sub_epi32(a, b); }
  static LLMQ_INLINE I muli(I a, I b) { return _mm512_mullo_epi32(a, b); }
  template <int Shift, int Mask>
  static LLMQ_INLINE I field(I v) {
    return _mm512_and_si512(_mm512_srli_epi32(v, Shift), _mm512_set1_epi32(Mask));
  }
  static LLMQ_INLINE I ori(I a, I b) { return _mm512_or_si512(a, b); }
  template <int Shift>
  static LLMQ_INLINE I left(I v) {
    return _mm512_slli_epi32(v, Shift);
  }
  static LLMQ_INLINE I maxi(I a, I b) { return _mm512_max_epi32(a, b); }
  static LLMQ_INLINE F from_bits(I v) { return _mm512_castsi512_ps(v); }
  // Sixteen numbers, and those that 4 bits of each lane say, which are all that a permutation looks at.
  static LLMQ_INLINE F book(const float* values) { return load(values); }
  template <int Shift>
  static LLMQ_INLINE F look_up(F book, I words) {
    return _mm512_permutexvar_ps(_mm512_srli_epi32(words, Shift), book);
  }
  // Two bytes a lane, each in a half of its own.
  static LLMQ_INLINE I byte_pairs(const void* p) {
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  static LLMQ_INLINE F to_f32(I v) { return _mm512_cvtepi32_ps(v); }
  static LLMQ_INLINE I pair_bits(F low, F high) {
    return _mm512_mask_mov_epi16(_mm512_castps_si512(high), 0x55555555u,
                                 _mm512_srli_epi32(_mm512_castps_si512(low), 16));
  }
  static LLMQ_INLINE F load_f16(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  static LLMQ_INLINE void store_f16(void* p, F v) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }

  static LLMQ_INLINE D setd(double v) { return _mm512_set1_pd(v); }
  static LLMQ_INLINE D loadd(const double* p) { return _mm512_loadu_pd(p); }
  static LLMQ_INLINE void stored(double* p, D v) { _mm512_storeu_pd(p, v); }
  static LLMQ_INLINE D widen(const float* p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
  static LLMQ_INLINE D fmad(D a, D b, D c) { return _mm512_fmadd_pd(a, b, c); }
  static LLMQ_INLINE D addd(D a, D b) { return _mm512_add_pd(a, b); }
  static LLMQ_INLINE D subd(D a, D b) { return _mm512_sub_pd(a, b); }
  static LLMQ_INLINE D muld(D a, D b) { return _mm512_mul_pd(a, b); }
  static LLMQ_INLINE D maxd(D a, D b) { return _mm512_max_pd(a, b); }
  static LLMQ_INLINE D zero_where_lessd(D x, D limit, D v) {
    return _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(x, limit, _CMP_NLT_UQ), v);
  }
  static LLMQ_INLINE D power_of_twod(D shifted) {
    return _mm512_castsi512_pd(
        _mm512_slli_epi64(_mm512_add_epi64(_mm512_castpd_si512(shifted), _mm512_set1_epi64(1023)), 52));
  }
  static LLMQ_INLINE D fma_where_positive(D share, D b, D c) {
    return _mm512_mask3_fmadd_pd(share, b, c, _mm512_cmp_pd_mask(share, _mm512_setzero_pd(), _CMP_GT_OQ));
  }
  static LLMQ_INLINE double sumd(D v) { return _mm512_reduce_add_pd(v); }
};

}  // namespace
}  // namespace llmq
