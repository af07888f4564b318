#include "peak.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>

namespace llmq::bench {
namespace {

constexpr int kChains = 24;  // more than latency times throughput of any of these instructions
constexpr long kSteps = 200'000;

__attribute__((target("avx512f"))) double run_avx512() {
  __m512 acc[kChains];
  for (__m512& chain : acc) chain = _mm512_setzero_ps();
  __m512 a = _mm512_set1_ps(1.0f), b = _mm512_set1_ps(0.5f);
  for (long i = 0; i < kSteps; ++i) {
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) acc[c] = _mm512_fmadd_ps(a, b, acc[c]);
    asm volatile("" : "+v"(a), "+v"(b));
  }
  for (int c = 1; c < kChains; ++c) acc[0] = _mm512_add_ps(acc[0], acc[c]);
  volatile float sink = _mm512_cvtss_f32(acc[0]);
  (void)sink;
  return 2.0 * 16 * kChains * kSteps;
}

__attribute__((target("avx512f,avx512bf16"))) double run_avx512_bf16() {
  __m512 acc[kChains];
  for (__m512& chain : acc) chain = _mm512_setzero_ps();
  __m512i a = _mm512_set1_epi32(0x3f803f80), b = _mm512_set1_epi32(0x3f003f00);
  for (long i = 0; i < kSteps; ++i) {
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c)
      acc[c] = _mm512_dpbf16_ps(acc[c], __builtin_bit_cast(__m512bh, a), __builtin_bit_cast(__m512bh, b));
    asm volatile("" : "+v"(a), "+v"(b));
  }
  for (int c = 1; c < kChains; ++c) acc[0] = _mm512_add_ps(acc[0], acc[c]);
  volatile float sink = _mm512_cvtss_f32(acc[0]);
  (void)sink;
  return 4.0 * 16 * kChains * kSteps;
}

__attribute__((target("avx2,fma"))) double run_avx2() {
  constexpr int kFew = 12;  // sixteen registers
  __m256 acc[kFew];
  for (__m256& chain : acc) chain = _mm256_setzero_ps();
  __m256 a = _mm256_set1_ps(1.0f), b = _mm256_set1_ps(0.5f);
  for (long i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kFew; ++c) acc[c] = _mm256_fmadd_ps(a, b, acc[c]);
    asm volatile("" : "+x"(a), "+x"(b));
  }
  for (int c = 1; c < kFew; ++c) acc[0] = _mm256_add_ps(acc[0], acc[c]);
  volatile float sink = _mm256_cvtss_f32(acc[0]);
  (void)sink;
  return 2.0 * 8 * kFew * kSteps;
}

}  // namespace

Peak peak_gflops(ThreadPool& pool, PeakKind kind) {
  double (*run)() = nullptr;
  if (kind == PeakKind::kBF16 && __builtin_cpu_supports("avx512bf16"))
    run = run_avx512_bf16;
  else if (__builtin_cpu_supports("avx512f"))
    run = run_avx512;
  else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    run = run_avx2;
  if (run == nullptr) return {};
  Peak best;
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::atomic<long> work{0};
    const std::clock_t processor = std::clock();
    const auto start = std::chrono::steady_clock::now();
    pool.parallel_for(static_cast<std::size_t>(pool.size()),
                      [&](std::size_t, int) { work += static_cast<long>(run()); });
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const double spent = static_cast<double>(std::clock() - processor) / CLOCKS_PER_SEC;
    best.by_clock = std::max(best.by_clock, static_cast<double>(work) / took.count() * 1e-9);
    best.by_processor_time = std::max(best.by_processor_time, static_cast<double>(work) / spent * 1e-9);
  }
  return best;
}

}  // namespace llmq::bench
