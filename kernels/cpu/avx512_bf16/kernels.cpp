// AVX-512 with BF16 and VNNI: vdpbf16ps adds two products per lane and treats denormals as zero, in and out;
// vpdpbusd adds four. What has no such product in it is AVX-512's own.
#include "kernels/cpu/avx512/vector.h"
#include "kernels/cpu/avx512_bf16/pair_codes.h"
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
  // Codes below 16, as ProductInt8 has them; sums are whole from the start.
  static constexpr int64_t kNibbleWords = 0;
  using Nibbles = int32_t __attribute__((vector_size(64)));
  static LLMQ_INLINE Nibbles add_nibbles(Nibbles part, B input, B codes) {
    return __builtin_bit_cast(Nibbles, add(__builtin_bit_cast(B, part), input, codes));
  }
  static LLMQ_INLINE B whole(Nibbles part) { return __builtin_bit_cast(B, part); }
};

}  // namespace

const CpuKernels& avx512_bf16_kernels() noexcept {
  static const CpuKernels kernels =
      with_products<Avx512, ProductPairs, ProductQuads, PairCodes>(kAvx512Kernels, "avx512_bf16");
  return kernels;
}

}  // namespace llmq
