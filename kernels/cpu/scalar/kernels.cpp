// The level every machine has: one lane, the C library's fma. Slow, and the same FP32 bits as every other
// level.
#include <math.h>

#include "kernels/cpu/level.h"
#include "kernels/cpu/ops/kernel_table.h"

namespace llmq {
namespace {

struct Scalar {
  static constexpr int kLanes = 1, kDoubles = 1, kPanelVectors = 4, kRowTile = 2;
  using F = float;
  using D = double;
  static LLMQ_INLINE F set(float v) { return v; }
  static LLMQ_INLINE F load(const float* p) { return *p; }
  static LLMQ_INLINE void store(float* p, F v) { *p = v; }
  static LLMQ_INLINE F load_first(const float* p, int n) { return n > 0 ? *p : 0; }
  static LLMQ_INLINE void store_first(float* p, F v, int n) {
    if (n > 0) *p = v;
  }
  static LLMQ_INLINE F load_bf16(const BFloat16* p) { return to_float(*p); }
  static LLMQ_INLINE void store_bf16(BFloat16* p, F v) { *p = to_bfloat16(v); }
  static LLMQ_INLINE F even_bf16(const void* p) { return float_from_bits(unit(p) << 16); }
  static LLMQ_INLINE F odd_bf16(const void* p) { return float_from_bits(unit(p) & 0xffff0000u); }
  static LLMQ_INLINE F fma(F a, F b, F c) { return __builtin_fmaf(a, b, c); }
  static LLMQ_INLINE F add(F a, F b) { return a + b; }
  static LLMQ_INLINE F sub(F a, F b) { return a - b; }
  static LLMQ_INLINE F mul(F a, F b) { return a * b; }
  static LLMQ_INLINE F div(F a, F b) { return a / b; }
  static LLMQ_INLINE F sqrt(F a) { return __builtin_sqrtf(a); }
  static LLMQ_INLINE F max(F a, F b) { return a > b ? a : b; }
  static LLMQ_INLINE F min(F a, F b) { return a < b ? a : b; }
  static LLMQ_INLINE F zero_where_less(F x, F limit, F v) { return x < limit ? 0 : v; }
  static LLMQ_INLINE F power_of_two(F shifted) {
    return float_from_bits((bits_from_float(shifted) + 127) << 23);
  }
  static LLMQ_INLINE F scale_where_not_less(F x, F limit, F p, F, F shifted) {
    return zero_where_less(x, limit, mul(p, power_of_two(shifted)));
  }
  static LLMQ_INLINE bool any_greater(F a, F b) { return a > b; }
  static LLMQ_INLINE bool any_equal(F a, F b) { return a == b; }
  static LLMQ_INLINE float sum(F v) { return v; }
  static LLMQ_INLINE float greatest(F v) { return v; }
  static LLMQ_INLINE float first(F v) { return v; }

  // One lane of INT32, or of two INT16.
  using I = int32_t;
  static LLMQ_INLINE I zeroi() { return 0; }
  static LLMQ_INLINE I loadi(const void* p) { return static_cast<int32_t>(unit(p)); }
  static LLMQ_INLINE void storei(void* p, I v) { __builtin_memcpy(p, &v, sizeof v); }
  static LLMQ_INLINE I loadi_first(const void* p, int n) { return n > 0 ? loadi(p) : 0; }
  static LLMQ_INLINE void storei_first(void* p, I v, int n) {
    if (n > 0) storei(p, v);
  }
  static LLMQ_INLINE I addi(I a, I b) {
    return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
  }
  static LLMQ_INLINE I even_bytes(const void* p) { return static_cast<int32_t>(unit(p) & 0x00ff00ffu); }
  static LLMQ_INLINE I odd_bytes(const void* p) { return static_cast<int32_t>(unit(p) >> 8 & 0x00ff00ffu); }
  static LLMQ_INLINE I set_even_bytes(uint32_t unit) {
    return pair(static_cast<int8_t>(unit), static_cast<int8_t>(unit >> 16));
  }
  static LLMQ_INLINE I set_odd_bytes(uint32_t unit) { return set_even_bytes(unit >> 8); }
  static LLMQ_INLINE I pair_products(I a, I b) {
    return static_cast<int16_t>(a) * static_cast<int16_t>(b) + (a >> 16) * (b >> 16);
  }
  static LLMQ_INLINE void store_int8(int8_t* p, F v) { *p = static_cast<int8_t>(v); }
  // Products of four bytes, unsigned by signed: here their sum, elsewhere two halves of it.
  using Halves = I;
  static LLMQ_INLINE Halves byte_products(I codes, I inputs) {
    I sum = 0;
    for (int shift = 0; shift < 32; shift += 8)
      sum += static_cast<uint8_t>(codes >> shift) * static_cast<int8_t>(inputs >> shift);
    return sum;
  }
  static LLMQ_INLINE I sum_of_halves(Halves v) { return v; }

  // INT32 lanes out of bytes and codes, and back to numbers.
  static LLMQ_INLINE I load_u8(const void* p) { return *static_cast<const uint8_t*>(p); }
  static LLMQ_INLINE I load_i8(const void* p) { return *static_cast<const int8_t*>(p); }
  static LLMQ_INLINE I seti(int v) { return v; }
  static LLMQ_INLINE I subi(I a, I b) { return a - b; }
  static LLMQ_INLINE I muli(I a, I b) { return a * b; }
  template <int Shift, int Mask>
  static LLMQ_INLINE I field(I v) {
    return static_cast<int32_t>(static_cast<uint32_t>(v) >> Shift & static_cast<uint32_t>(Mask));
  }
  static LLMQ_INLINE I ori(I a, I b) { return a | b; }
  template <int Shift>
  static LLMQ_INLINE I left(I v) {
    return static_cast<int32_t>(static_cast<uint32_t>(v) << Shift);
  }
  static LLMQ_INLINE I maxi(I a, I b) { return a > b ? a : b; }
  static LLMQ_INLINE F from_bits(I v) { return float_from_bits(static_cast<uint32_t>(v)); }
  // Sixteen numbers, and those that 4 bits of each lane say.
  static LLMQ_INLINE const float* book(const float* values) { return values; }
  template <int Shift>
  static LLMQ_INLINE F look_up(const float* book, I words) {
    return book[field<Shift, 15>(words)];
  }
  // Two bytes a lane, each in a half of its own.
  static LLMQ_INLINE I byte_pairs(const void* p) {
    const auto* const at = static_cast<const uint8_t*>(p);
    return at[0] | at[1] << 16;
  }
  static LLMQ_INLINE F to_f32(I v) { return static_cast<float>(v); }
  static LLMQ_INLINE I pair_bits(F low, F high) {
    return static_cast<int32_t>(bits_from_float(low) >> 16 | (bits_from_float(high) & 0xffff0000u));
  }
  static LLMQ_INLINE F load_f16(const void* p) {
    Float16 half;
    __builtin_memcpy(&half, p, sizeof half);
    return to_float(half);
  }
  static LLMQ_INLINE void store_f16(void* p, F v) {
    const Float16 half = to_float16(v);
    __builtin_memcpy(p, &half, sizeof half);
  }

  static LLMQ_INLINE D setd(double v) { return v; }
  static LLMQ_INLINE D loadd(const double* p) { return *p; }
  static LLMQ_INLINE void stored(double* p, D v) { *p = v; }
  static LLMQ_INLINE D widen(const float* p) { return static_cast<double>(*p); }
  static LLMQ_INLINE D fmad(D a, D b, D c) { return __builtin_fma(a, b, c); }
  static LLMQ_INLINE D addd(D a, D b) { return a + b; }
  static LLMQ_INLINE D subd(D a, D b) { return a - b; }
  static LLMQ_INLINE D muld(D a, D b) { return a * b; }
  static LLMQ_INLINE D maxd(D a, D b) { return a > b ? a : b; }
  static LLMQ_INLINE D zero_where_lessd(D x, D limit, D v) { return x < limit ? 0 : v; }
  static LLMQ_INLINE D power_of_twod(D shifted) {
    return __builtin_bit_cast(double, (__builtin_bit_cast(uint64_t, shifted) + 1023) << 52);
  }
  static LLMQ_INLINE D fma_where_positive(D share, D b, D c) {
    return share > 0 ? __builtin_fma(share, b, c) : c;
  }
  static LLMQ_INLINE double sumd(D v) { return v; }

 private:
  static LLMQ_INLINE I pair(int8_t low, int8_t high) {
    return static_cast<int32_t>(static_cast<uint16_t>(low) | static_cast<uint32_t>(high) << 16);
  }
  static LLMQ_INLINE uint32_t unit(const void* p) {
    uint32_t bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    return bits;
  }
};

}  // namespace

extern const CpuKernels kScalarKernels =
    kernel_table<Scalar, ProductBF16<Scalar>, ProductInt8<Scalar>, WideCodes<Scalar>>("scalar");

}  // namespace llmq
