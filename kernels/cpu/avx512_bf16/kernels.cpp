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

}  // namespace

extern const CpuKernels kAvx512Bf16Kernels = kernel_table<Avx512, ProductPairs, ProductQuads>("avx512_bf16");

}  // namespace llmq
