// Asks the processor for AVX-512 and what is built on it.
#include "kernels/cpu/level.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace llmq {

const CpuKernels* avx512_plain_level() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
             ? &kAvx512Kernels
             : nullptr;
}

bool avx512_bf16_present() {
  return avx512_plain_level() != nullptr && __builtin_cpu_supports("avx512bf16") &&
         __builtin_cpu_supports("avx512vnni");
}

const CpuKernels* avx512_level() {
  return avx512_bf16_present() ? &avx512_bf16_kernels() : avx512_plain_level();
}

bool amx_present() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  if ((d & kBf16) == 0 || (d & kTile) == 0 || (d & kInt8) == 0) return false;
  constexpr long kRequestPermission = 0x1023,
                 kTileData = 18;  // ARCH_REQ_XCOMP_PERM: the kernel must agree to save tiles
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace llmq
