// How a kernel is written so that a CPU can run it too: as the work of one block of threads, in steps that
// every thread takes.
//
//   struct Scale {                                       // y[i] = factor x[i]
//     struct Arguments { float* y; const float* x; float factor; int64_t count; };
//     static constexpr int kThreads = 256;
//     struct Shared {};                                  // what the threads of a block share: Array<T, N>
//         members
//     static Grid grid(const Arguments& a) { return {blocks_for(a.count, kThreads)}; }
//     static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared&) {
//       block.each([&](int thread) {
//         const int64_t i = int64_t{block.x} * kThreads + thread;
//         if (i < a.count) a.y[i] = a.factor * a.x[i];
//       });
//     }
//   };
//
// Control flow outside of each() depends on the block alone, so a barrier is never reached by some threads
// only. What a thread keeps from one each() to the next is PerThread<T, kThreads>: a register on the device.
// each() is no barrier: what one thread writes to an Array, another reads only after block.barrier().
// Collectives (mma_*, multiply_*, exchange) stand outside of each(), and take for every thread where its
// operands are.
//
// On the device (block_device.h) all of this is the plain instruction. On the host (block_emulated.h) every
// thread runs each step, in turn; an Array knows who touched each element since the last barrier, and throws
// EmulationFault where a device could have given another result. launch_device.h starts a kernel,
// launch_emulated.h emulates it.
//
// Compiled with --fmad=false and -ffp-contract=off: a fused multiply-add is written as fmaf().
#pragma once
#include <math.h>
#include <stdint.h>

#include "base/half.h"

namespace llmq::cuda {

// Blocks of a launch. y and z are at most 65535.
struct Grid {
  int64_t x = 1;
  int y = 1, z = 1;
};

constexpr int64_t blocks_for(int64_t count, int64_t each) { return (count + each - 1) / each; }

// What one thread holds of the operands of a warp's product, in the order of the PTX manual. With group =
// lane / 4, t = lane % 4:
//   mma_bf16: D[16][8] += A[16][16] B[16][8]; A: rows group (+8 in words 1, 3), columns 2t, 2t+1 (+8 in words
//   2, 3); B: column group,
//             rows 2t, 2t+1 (+8 in word 1); a word is two BF16, the lower half the lower index
//   mma_s8:   D[16][8] += A[16][32] B[32][8]; the same with four INT8 a word: columns 4t .. 4t+3 (+16)
//   float4:   D[16][8] += A[16][64] B[64][8]; the same with eight E2M1 a word: columns 8t .. 8t+7 (+32), the
//             first in the lowest bits, and with scales of A's rows and B's columns, a word a lane: of row
//             group and column group the lane t = 0 has them, of row group + 8 the lane t = 1. Byte i is of
//             columns 16i .. 16i+15, an E4M3 number; exponents: of columns 32i .. 32i+31 of bytes 0 and 1
//   D:        rows group (+8 in 2, 3), columns 2t, 2t+1
struct FragmentA {
  uint32_t v[4];
};
struct FragmentB {
  uint32_t v[2];
};
struct Sums {
  float v[4];
};
struct IntegerSums {
  int32_t v[4];
};

constexpr int kWarp = 32;

}  // namespace llmq::cuda

#ifdef __CUDACC__
#include "kernels/cuda/block_device.h"
#else
#include "kernels/cuda/block_emulated.h"
#endif

namespace llmq::cuda {

// Two BF16 of a word; those of numbers that BF16 represents.
LLMQ_BLOCK uint32_t bfloat16_pair(float low, float high) {
  return (bits_from_float(low) >> 16) | (bits_from_float(high) & 0xffff0000u);
}
LLMQ_BLOCK uint32_t word_of(BFloat16 low, BFloat16 high) {
  return low.bits | static_cast<uint32_t>(high.bits) << 16;
}

}  // namespace llmq::cuda
