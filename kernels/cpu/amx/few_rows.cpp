// Products of a few rows with codes of few bits in the order of sums that a tile has (tiles.h), by AVX-512:
//
//   for each 32 codes of a group, in order: even = odd = 0; over the pairs k of them, in order:
//     even = fma(a[2k], b[2k], even);  odd = fma(a[2k+1], b[2k+1], odd);   then total = total + (even + odd)
//
// A tile takes as long for one row as for sixteen, and waits for its codes to pass through memory: decoding
// is two to three times as fast here, in the same bits. Tiles flush denormals, which this cannot without
// losing scales that are some: where all inputs are 0 or at least 2^-100 every sum is a multiple of 2^-118,
// as codes' numbers are of 2^-11, and nothing is flushed. Other rows are for the tiles.
#include "kernels/cpu/amx/few_rows.h"

#include "kernels/cpu/avx512_bf16/pair_codes.h"
#include "kernels/cpu/ops/narrow.h"

namespace llmq {
namespace {

struct TileOrder : ProductBF16<Avx512> {};

// WideCodes in fewer instructions: four bits are looked up where the next code's bits above do not matter,
// and other widths take the way by BF16 pairs.
struct TileCodes : WideCodes<Avx512> {
  struct Numbers {
    alignas(64) float values[16];
  };
  template <int First>
  static LLMQ_INLINE __m512 numbers() {
    static constexpr Numbers kNumbers = [] {
      Numbers numbers{};
      for (int i = 0; i < 16; ++i) numbers.values[i] = static_cast<float>(i + First);
      return numbers;
    }();
    return Avx512::load(kNumbers.values);
  }
  template <int Bits>
  static LLMQ_INLINE auto middle() {
    if constexpr (Bits == 4)
      return numbers<-8>();
    else
      return PairCodes::middle<Bits>();
  }
  static LLMQ_INLINE __m512 zero4(const unsigned char* at) { return Avx512::to_f32(Avx512::load_u8(at)); }
  template <CodeForm Form>
  static LLMQ_INLINE void expand4(B (&out)[4], const unsigned char* at, __m512 zero) {
    const __m512i words = Avx512::loadi(at);
    unroll<4>([&](auto j) LLMQ_LAMBDA_INLINE {
      constexpr int kShift = 4 * decltype(j)::value;
      const auto number = [&](auto shift) LLMQ_LAMBDA_INLINE {
        if constexpr (Form == CodeForm::kZeros)
          return Avx512::sub(Avx512::look_up<decltype(shift)::value>(numbers<0>(), words), zero);
        else
          return Avx512::look_up<decltype(shift)::value>(zero, words);
      };
      out[decltype(j)::value] = {number(Index<kShift>{}), number(Index<kShift + 16>{})};
    });
  }
  template <int Bits, int J>
  static LLMQ_INLINE B pair(const NarrowWords<Avx512, Bits>& words, __m512i zero) {
    const __m512i both = PairCodes::pair<Bits, J>(words, zero);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
  }
};

}  // namespace

template <>
struct NarrowSum<Avx512, TileOrder> {
  static constexpr int kChains = 1;                     // even and odd ones are two
  static constexpr int64_t kStep = 32, kPairBytes = 8;  // FP32
  __m512 total, even, odd;
  static LLMQ_INLINE NarrowSum zero() { return {Avx512::set(0.0f), Avx512::set(0.0f), Avx512::set(0.0f)}; }
  static LLMQ_INLINE TileOrder::B input(const unsigned char* pair) {
    const auto* const numbers = reinterpret_cast<const float*>(pair);
    return {Avx512::set(numbers[0]), Avx512::set(numbers[1])};
  }
  LLMQ_INLINE void add(const TileOrder::B& input, const TileOrder::B& pair) {
    even = Avx512::fma(input.even, pair.even, even);
    odd = Avx512::fma(input.odd, pair.odd, odd);
  }
  LLMQ_INLINE void end_step() {
    total = Avx512::add(total, Avx512::add(even, odd));
    even = odd = Avx512::set(0.0f);
  }
};

template <>
struct NarrowTile<Avx512, TileOrder> {
  static constexpr int kRows = static_cast<int>(kFewTileRows);
};

// to[k] = from[k]; whether each is 0 or at least 2^-100, or no number.
static bool widen(float* to, const unsigned char* from, int64_t count) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff), least = _mm512_set1_epi32((127 - 100) << 23);
  __mmask16 tiny = 0;
  for (int64_t k = 0; k < count; k += Avx512::kLanes) {
    const int64_t left = count - k;
    const __mmask16 there = static_cast<__mmask16>(left < Avx512::kLanes ? (1u << left) - 1 : 0xffffu);
    const __m512i x =
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, from + 2 * k)), 16);
    _mm512_mask_storeu_epi32(to + k, there, x);
    const __m512i size = _mm512_and_si512(x, magnitude);
    tiny |= _mm512_mask_cmplt_epi32_mask(_mm512_test_epi32_mask(size, size), size, least);
  }
  return tiny == 0;
}

bool multiply_few_rows(const NarrowProduct& p) {
  constexpr int64_t kMostBytes = 256 << 10;  // of the stack
  const int64_t depth = p.layout.groups * p.layout.group;
  if (p.rows > kFewTileRows || p.rows * depth * 4 > kMostBytes) return false;
  auto* const wide = static_cast<float*>(__builtin_alloca(static_cast<size_t>(p.rows * depth * 4)));
  for (int64_t r = 0; r < p.rows; ++r)
    if (!widen(wide + r * depth, static_cast<const unsigned char*>(p.a) + r * p.a_row, depth)) return false;
  NarrowProduct in_floats = p;
  in_floats.a = wide;
  in_floats.a_row = 4 * depth;
  narrow_gemm<Avx512, TileOrder, TileCodes>(in_floats);
  return true;
}

}  // namespace llmq
