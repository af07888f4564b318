// AVX2 with FMA: 8 floats, 4 doubles; register tiles of 6 rows x 16 columns (12 of 16 registers accumulate).
#include <immintrin.h>

#include "kernels/cpu/level.h"
#include "kernels/cpu/ops/kernel_table.h"

namespace llmq {
namespace {

struct Avx2 {
  static constexpr int kLanes = 8, kDoubles = 4, kPanelVectors = 2, kRowTile = 6;
  using F = __m256;
  using D = __m256d;
  static LLMQ_INLINE __m256i first_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static LLMQ_INLINE F set(float v) { return _mm256_set1_ps(v); }
  static LLMQ_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
  static LLMQ_INLINE void store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static LLMQ_INLINE F load_first(const float* p, int n) { return _mm256_maskload_ps(p, first_lanes(n)); }
  static LLMQ_INLINE void store_first(float* p, F v, int n) { _mm256_maskstore_ps(p, first_lanes(n), v); }
  static LLMQ_INLINE F load_bf16(const BFloat16* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  static LLMQ_INLINE void store_bf16(BFloat16* p, F v) {
    const __m256i x = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(x, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(x, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i chosen = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(chosen, chosen), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
  static LLMQ_INLINE F even_bf16(const void* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)), 16));
  }
  static LLMQ_INLINE F odd_bf16(const void* p) {
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(static_cast<const __m256i*>(p)),
                                                _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static LLMQ_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static LLMQ_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
  static LLMQ_INLINE F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static LLMQ_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static LLMQ_INLINE F div(F a, F b) { return _mm256_div_ps(a, b); }
  static LLMQ_INLINE F sqrt(F a) { return _mm256_sqrt_ps(a); }
  static LLMQ_INLINE F max(F a, F b) { return _mm256_max_ps(a, b); }
  static LLMQ_INLINE F min(F a, F b) { return _mm256_min_ps(a, b); }
  static LLMQ_INLINE F zero_where_less(F x, F limit, F v) {
    return _mm256_and_ps(_mm256_cmp_ps(x, limit, _CMP_NLT_UQ), v);
  }
  static LLMQ_INLINE F power_of_two(F shifted) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(127)), 23));
  }
  static LLMQ_INLINE F scale_where_not_less(F x, F limit, F p, F, F shifted) {
    return zero_where_less(x, limit, mul(p, power_of_two(shifted)));
  }
  static LLMQ_INLINE bool any_greater(F a, F b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0;
  }
  static LLMQ_INLINE bool any_equal(F a, F b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)) != 0;
  }
  static LLMQ_INLINE float sum(F v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static LLMQ_INLINE float greatest(F v) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
  static LLMQ_INLINE float first(F v) { return _mm256_cvtss_f32(v); }

  using I = __m256i;
  static LLMQ_INLINE I zeroi() { return _mm256_setzero_si256(); }
  static LLMQ_INLINE I loadi(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static LLMQ_INLINE void storei(void* p, I v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
  static LLMQ_INLINE I loadi_first(const float* p, int n) {
    return _mm256_maskload_epi32(reinterpret_cast<const int*>(p), first_lanes(n));
  }
  static LLMQ_INLINE void storei_first(float* p, I v, int n) {
    _mm256_maskstore_epi32(reinterpret_cast<int*>(p), first_lanes(n), v);
  }
  static LLMQ_INLINE I addi(I a, I b) { return _mm256_add_epi32(a, b); }
  static LLMQ_INLINE I even_bytes(const void* p) {
    return _mm256_and_si256(loadi(p), _mm256_set1_epi32(0x00ff00ff));
  }
  static LLMQ_INLINE I odd_bytes(const void* p) { return _mm256_srli_epi16(loadi(p), 8); }
  static LLMQ_INLINE I set_even_bytes(uint32_t unit) {
    return _mm256_srai_epi16(_mm256_slli_epi16(_mm256_set1_epi32(static_cast<int>(unit)), 8), 8);
  }
  static LLMQ_INLINE I set_odd_bytes(uint32_t unit) {
    return _mm256_srai_epi16(_mm256_set1_epi32(static_cast<int>(unit)), 8);
  }
  static LLMQ_INLINE I pair_products(I a, I b) { return _mm256_madd_epi16(a, b); }
  // Products of four bytes, unsigned by signed, as two halves of their sum; and what halves come to.
  using Halves = int16_t __attribute__((vector_size(32)));
  static LLMQ_INLINE Halves byte_products(I codes, I inputs) {
    return __builtin_bit_cast(Halves, _mm256_maddubs_epi16(codes, inputs));
  }
  static LLMQ_INLINE I sum_of_halves(Halves v) {
    return _mm256_madd_epi16(__builtin_bit_cast(I, v), _mm256_set1_epi16(1));
  }
  static LLMQ_INLINE void store_int8(int8_t* p, F v) {
    const __m256i wide = _mm256_cvtps_epi32(v);
    const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(half, half));
  }

  // INT32 lanes out of bytes and codes, and back to numbers.
  static LLMQ_INLINE I load_u8(const void* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
  }
  static LLMQ_INLINE I load_i8(const void* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
  }
  static LLMQ_INLINE I seti(int v) { return _mm256_set1_epi32(v); }
  static LLMQ_INLINE I subi(I a, I b) { return _mm256_sub_epi32(a, b); }
  static LLMQ_INLINE I muli(I a, I b) { return _mm256_mullo_epi32(a, b); }
  template <int Shift, int Mask>
  static LLMQ_INLINE I field(I v) {
    return _mm256_and_si256(_mm256_srli_epi32(v, Shift), _mm256_set1_epi32(Mask));
  }
  static LLMQ_INLINE I ori(I a, I b) { return _mm256_or_si256(a, b); }
  template <int Shift>
  static LLMQ_INLINE I left(I v) {
    return _mm256_slli_epi32(v, Shift);
  }
  static LLMQ_INLINE I maxi(I a, I b) { return _mm256_max_epi32(a, b); }
  static LLMQ_INLINE F from_bits(I v) { return _mm256_castsi256_ps(v); }
  // Sixteen numbers, and those that 4 bits of each lane say: a permutation looks at three of them.
  struct Book {
    F low, high;
  };
  static LLMQ_INLINE Book book(const float* values) { return {load(values), load(values + kLanes)}; }
  template <int Shift>
  static LLMQ_INLINE F look_up(Book book, I words) {
    const I index = _mm256_srli_epi32(words, Shift);
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(book.low, index),
                            _mm256_permutevar8x32_ps(book.high, index), from_bits(left<28 - Shift>(words)));
  }
  // Two bytes a lane, each in a half of its own.
  static LLMQ_INLINE I byte_pairs(const void* p) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static LLMQ_INLINE F to_f32(I v) { return _mm256_cvtepi32_ps(v); }
  static LLMQ_INLINE I pair_bits(F low, F high) {
    return _mm256_blend_epi16(_mm256_castps_si256(high), _mm256_srli_epi32(_mm256_castps_si256(low), 16),
                              0x55);
  }
  static LLMQ_INLINE F load_f16(const void* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static LLMQ_INLINE void store_f16(void* p, F v) {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }

  static LLMQ_INLINE D setd(double v) { return _mm256_set1_pd(v); }
  static LLMQ_INLINE D loadd(const double* p) { return _mm256_loadu_pd(p); }
  static LLMQ_INLINE void stored(double* p, D v) { _mm256_storeu_pd(p, v); }
  static LLMQ_INLINE D widen(const float* p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
  static LLMQ_INLINE D fmad(D a, D b, D c) { return _mm256_fmadd_pd(a, b, c); }
  static LLMQ_INLINE D addd(D a, D b) { return _mm256_add_pd(a, b); }
  static LLMQ_INLINE D subd(D a, D b) { return _mm256_sub_pd(a, b); }
  static LLMQ_INLINE D muld(D a, D b) { return _mm256_mul_pd(a, b); }
  static LLMQ_INLINE D maxd(D a, D b) { return _mm256_max_pd(a, b); }
  static LLMQ_INLINE D zero_where_lessd(D x, D limit, D v) {
    return _mm256_and_pd(_mm256_cmp_pd(x, limit, _CMP_NLT_UQ), v);
  }
  static LLMQ_INLINE D power_of_twod(D shifted) {
    return _mm256_castsi256_pd(
        _mm256_slli_epi64(_mm256_add_epi64(_mm256_castpd_si256(shifted), _mm256_set1_epi64x(1023)), 52));
  }
  static LLMQ_INLINE D fma_where_positive(D share, D b, D c) {
    const D positive = _mm256_cmp_pd(share, _mm256_setzero_pd(), _CMP_GT_OQ);
    return _mm256_blendv_pd(c, _mm256_fmadd_pd(share, b, c), positive);
  }
  static LLMQ_INLINE double sumd(D v) {
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
  }
};

}  // namespace

extern const CpuKernels kAvx2Kernels =
    kernel_table<Avx2, ProductBF16<Avx2>, ProductInt8<Avx2>, WideCodes<Avx2>>("avx2");

}  // namespace llmq
