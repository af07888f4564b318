// A block on the device: every step is the plain instruction (kernels/cuda/block.h).
//
// sm_75 has neither BF16 products nor asynchronous copies: there a product is gathered from the lanes and
// summed in order of k, and a copy happens at once.
#pragma once
#include <cuda_runtime_api.h>

#define LLMQ_BLOCK __device__ __forceinline__
#define LLMQ_UNROLL _Pragma("unroll")  // of a loop that indexes registers

namespace llmq::cuda {

// The same number, of which the compiler does not know it: what was computed from it before is computed
// again, not kept in registers.
LLMQ_BLOCK int anew(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// Numbers from *count on, each once, in no order: for lists whose order shows in no result.
LLMQ_BLOCK unsigned long long next_number(unsigned long long* count) { return atomicAdd(count, 1ull); }

// (word & mask) | bits in one instruction, where the constants stay in registers.
LLMQ_BLOCK uint32_t masked_or(uint32_t word, uint32_t mask, uint32_t bits) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(bits));
  return result;
}

// Sums of two pairs of BF16, each rounded once.
LLMQ_BLOCK uint32_t add_pairs(uint32_t x, uint32_t y) {
#if __CUDA_ARCH__ >= 800
  uint32_t sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(0x3f803f80u), "r"(y));
  return sum;
#else
  return to_bfloat16(float_from_bits(x << 16) + float_from_bits(y << 16)).bits |
         static_cast<uint32_t>(
             to_bfloat16(float_from_bits(x & 0xffff0000u) + float_from_bits(y & 0xffff0000u)).bits)
             << 16;
#endif
}

// Products of two pairs of BF16, each rounded once.
LLMQ_BLOCK uint32_t multiply_pairs(uint32_t x, uint32_t y) {
#if __CUDA_ARCH__ >= 800
  uint32_t product;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(x), "r"(y), "r"(0x80008000u));
  return product;
#else
  return to_bfloat16(float_from_bits(x << 16) * float_from_bits(y << 16)).bits |
         static_cast<uint32_t>(
             to_bfloat16(float_from_bits(x & 0xffff0000u) * float_from_bits(y & 0xffff0000u)).bits)
             << 16;
#endif
}

template <class T, int kThreads>
class PerThread {
 public:
  LLMQ_BLOCK T& operator[](int) { return value_; }
  LLMQ_BLOCK const T& operator[](int) const { return value_; }

 private:
  T value_;
};

// In shared memory.
template <class T, int kCount>
class Array {
 public:
  LLMQ_BLOCK T get(int, int i) const { return values_[i]; }
  LLMQ_BLOCK void set(int, int i, T value) { values_[i] = value; }
  // 16 bytes in one read: elements i .. i + 3 of 4 bytes each, i a multiple of 4.
  LLMQ_BLOCK void get4(int, int i, T* to) const {
    static_assert(sizeof(T) == 4);
    struct alignas(16) Four {
      T v[4];
    };
    const Four four = *reinterpret_cast<const Four*>(values_ + i);
    LLMQ_UNROLL
    for (int e = 0; e < 4; ++e) to[e] = four.v[e];
  }
  // 16 bytes from device memory, 0 where not `present`; both aligned to 16 bytes. near: kept in the
  // first-level cache, for what other blocks of the same processor copy too.
  LLMQ_BLOCK void copy_async(int t, int i, const void* from, bool present) {
    copy_by<false>(t, i, from, present);
  }
  LLMQ_BLOCK void copy_async_near(int t, int i, const void* from, bool present) {
    copy_by<true>(t, i, from, present);
  }
  LLMQ_BLOCK uint32_t address(int i) const {
    return static_cast<uint32_t>(__cvta_generic_to_shared(values_ + i));
  }

 private:
  template <bool kNear>
  LLMQ_BLOCK void copy_by(int, int i, const void* from, bool present) {
#if __CUDA_ARCH__ >= 800
    const uint32_t to = address(i);
    const int bytes = present ? 16 : 0;
    if constexpr (kNear)
      asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                   : "memory");
    else
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                   : "memory");
#else
    *reinterpret_cast<uint4*>(values_ + i) = present ? *static_cast<const uint4*>(from) : uint4{};
#endif
  }

  alignas(16) T values_[kCount];
};

#if __CUDA_ARCH__ < 800
// Products without matrix units: each lane takes the words of its rows and columns from the lanes that hold
// them. Functions of their own, so that they are compiled once.
inline __device__ __noinline__ Sums gathered_mma(Sums sum, FragmentA left, FragmentB right) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  LLMQ_UNROLL
  for (int k = 0; k < 16; ++k) {
    const int part = k / 8, quarter = k % 8 / 2, shift = k % 2 * 16;
    LLMQ_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint32_t x = __shfl_sync(0xffffffffu, left.v[part * 2 + i / 2], lane / 4 * 4 + quarter);
      const uint32_t y = __shfl_sync(0xffffffffu, right.v[part], (lane % 4 * 2 + i % 2) * 4 + quarter);
      sum.v[i] = fmaf(float_from_bits(x >> shift << 16), float_from_bits(y >> shift << 16), sum.v[i]);
    }
  }
  return sum;
}
inline __device__ __noinline__ IntegerSums gathered_mma(IntegerSums sum, FragmentA left, FragmentB right) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  LLMQ_UNROLL
  for (int word = 0; word < 8; ++word) {
    LLMQ_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint32_t x = __shfl_sync(0xffffffffu, left.v[word / 4 * 2 + i / 2], lane / 4 * 4 + word % 4);
      const uint32_t y = __shfl_sync(0xffffffffu, right.v[word / 4], (lane % 4 * 2 + i % 2) * 4 + word % 4);
      sum.v[i] = __dp4a(static_cast<int32_t>(x), static_cast<int32_t>(y), sum.v[i]);
    }
  }
  return sum;
}
#endif

template <int kThreads>
class Block {
 public:
  int x, y, z;  // of the grid

  template <class F>
  LLMQ_BLOCK void each(const F& step) const {
    step(static_cast<int>(threadIdx.x));
  }
  LLMQ_BLOCK void barrier() const { __syncthreads(); }

  // The copies so far are a group; wait<N>() until all but the latest N groups of this thread have arrived.
  LLMQ_BLOCK void commit_copies() const {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
  }
  template <int kLeft>
  LLMQ_BLOCK void wait_copies() const {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#endif
  }

  // to(t) = from(t ^ mask) within a warp, for 4-byte and 8-byte numbers.
  template <class To, class From>
  LLMQ_BLOCK void exchange(const To& to, const From& from, int mask) const {
    const int t = static_cast<int>(threadIdx.x);
    to(t) = __shfl_xor_sync(0xffffffffu, from(t), mask);
  }

  // The lanes of a warp, which may come from branches of their own, go on together.
  LLMQ_BLOCK void converge() const { __syncwarp(); }

  // Four matrices of 8 x 8 numbers of 16 bits: lane l names the place of row l % 8 of matrix l / 8, 4 words.
  // Of matrix i, to(t)[i] is what an operand of a product holds: of row lane / 4 columns 2 (lane % 4) and the
  // one after; kTurned: of the transposed matrix.
  template <bool kTurned, class To, int kCount, class Place>
  LLMQ_BLOCK void load_matrices(const To& to, const Array<uint32_t, kCount>& from, const Place& place) const {
    const int t = static_cast<int>(threadIdx.x);
    uint32_t* const words = to(t);
    const uint32_t row = from.address(place(t));
    if constexpr (kTurned)
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                   : "r"(row));
    else
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                   : "r"(row));
  }

  // multiply_*: after converge(), with no branch of a lane's own since. mma_*: anywhere.
  template <class D, class A, class B>
  LLMQ_BLOCK void mma_bf16(const D& d, const A& a, const B& b) const {
    converge();
    multiply_bf16(d, a, b);
  }
  template <class D, class A, class B>
  LLMQ_BLOCK void mma_s8(const D& d, const A& a, const B& b) const {
    converge();
    multiply_s8(d, a, b);
  }

  template <class D, class A, class B>
  LLMQ_BLOCK void multiply_bf16(const D& d, const A& a, const B& b) const {
    const int t = static_cast<int>(threadIdx.x);
    Sums& sum = d(t);
    const FragmentA& left = a(t);
    const FragmentB& right = b(t);
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(sum.v[0]), "+f"(sum.v[1]), "+f"(sum.v[2]), "+f"(sum.v[3])
        : "r"(left.v[0]), "r"(left.v[1]), "r"(left.v[2]), "r"(left.v[3]), "r"(right.v[0]), "r"(right.v[1]));
#else
    d(t) = gathered_mma(sum, left, right);
#endif
  }

  template <class D, class A, class B>
  LLMQ_BLOCK void multiply_s8(const D& d, const A& a, const B& b) const {
    const int t = static_cast<int>(threadIdx.x);
    IntegerSums& sum = d(t);
    const FragmentA& left = a(t);
    const FragmentB& right = b(t);
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(sum.v[0]), "+r"(sum.v[1]), "+r"(sum.v[2]), "+r"(sum.v[3])
        : "r"(left.v[0]), "r"(left.v[1]), "r"(left.v[2]), "r"(left.v[3]), "r"(right.v[0]), "r"(right.v[1]));
#else
    d(t) = gathered_mma(sum, left, right);
#endif
  }

  // Of sm_120a and its family alone: what calls it is compiled for these (float4_kernels.cu).
  template <bool kExponents, class D, class A, class B, class ScaleA, class ScaleB>
  LLMQ_BLOCK void multiply_float4(const D& d, const A& a, const B& b, const ScaleA& scale_a,
                                  const ScaleB& scale_b) const {
    const int t = static_cast<int>(threadIdx.x);
    Sums& sum = d(t);
    const FragmentA& left = a(t);
    const FragmentB& right = b(t);
    const uint32_t left_scale = scale_a(t), right_scale = scale_b(t);
    if constexpr (kExponents)
      asm volatile(
          "mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32."
          "ue8m0 "
          "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, {%10}, {0, 0}, {%11}, {0, 0};"
          : "+f"(sum.v[0]), "+f"(sum.v[1]), "+f"(sum.v[2]), "+f"(sum.v[3])
          : "r"(left.v[0]), "r"(left.v[1]), "r"(left.v[2]), "r"(left.v[3]), "r"(right.v[0]), "r"(right.v[1]),
            "r"(left_scale), "r"(right_scale));
    else
      asm volatile(
          "mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32."
          "ue4m3 "
          "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, {%10}, {0, 0}, {%11}, {0, 0};"
          : "+f"(sum.v[0]), "+f"(sum.v[1]), "+f"(sum.v[2]), "+f"(sum.v[3])
          : "r"(left.v[0]), "r"(left.v[1]), "r"(left.v[2]), "r"(left.v[3]), "r"(right.v[0]), "r"(right.v[1]),
            "r"(left_scale), "r"(right_scale));
  }
};

}  // namespace llmq::cuda
