// What the benchmarks share: a backend (LLMQ_CPU_ISA chooses the level, LLMQ_BENCH_THREADS the threads, all
// by default), tensors of noise, and work beside the limit of the machine that was measured just before and
// after it in this process (a busy neighbour slows both).
#pragma once
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "device/backend.h"
#include "device/machine_peaks.h"

namespace llmq::bench {

inline int bench_threads() {
  const char* const asked = std::getenv("LLMQ_BENCH_THREADS");
  return asked == nullptr ? available_cores() : std::atoi(asked);
}

inline Backend& backend() {
  static const std::shared_ptr<Backend> cpu = make_cpu_backend(bench_threads());
  return *cpu;
}

inline std::vector<float> noise(std::size_t n, unsigned seed) {
  std::vector<float> values(n);
  for (float& v : values) {
    seed = seed * 1664525u + 1013904223u;
    v = static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f;
  }
  return values;
}

struct Owned {
  Buffer storage;
  TensorView view;
};

inline Owned tensor(DType dtype, Shape shape, unsigned seed) {
  Owned owned;
  const TensorView sized(static_cast<const void*>(nullptr), dtype, shape);
  owned.storage = backend().allocate(sized.bytes());
  owned.view = owned.storage.view(dtype, shape);
  const std::vector<float> values = noise(static_cast<std::size_t>(shape.elements()), seed);
  backend().convert(owned.view, TensorView(values.data(), DType::kF32, shape));
  return owned;
}

// Runs `work` of `flops` under the benchmark, peaks measured before and after: the better one counts.
template <class Work>
void against_peak(benchmark::State& state, ArithmeticKind kind, double flops, const Work& work) {
  work();
  const Peak before = measure_peak(backend().workers(), kind);
  const std::clock_t start = std::clock();
  for (auto _ : state) work();
  const double spent = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  const Peak after = measure_peak(backend().workers(), kind);
  const double done = flops * static_cast<double>(state.iterations());
  const double by_clock = std::max(before.by_clock, after.by_clock);
  const double by_processor_time = std::max(before.by_processor_time, after.by_processor_time);
  state.counters["GFLOP/s"] = benchmark::Counter(done * 1e-9, benchmark::Counter::kIsRate);
  state.counters["of_peak"] = benchmark::Counter(done / by_clock, benchmark::Counter::kIsRate);
  state.counters["of_peak_by_processor_time"] = done / spent / by_processor_time;
  state.counters["peak"] = by_clock * 1e-9;
  state.SetLabel(backend().name());
}

// Work that reads `bytes` of weights or pages from memory, beside the bandwidth at which all threads read 256
// MiB.
template <class Work>
void against_bandwidth(benchmark::State& state, double bytes, const Work& work) {
  work();
  const double before = measure_read_bandwidth(backend().workers());
  for (auto _ : state) work();
  const double bandwidth = std::max(before, measure_read_bandwidth(backend().workers()));
  const double read = bytes * static_cast<double>(state.iterations());
  state.counters["GB/s"] = benchmark::Counter(read * 1e-9, benchmark::Counter::kIsRate);
  state.counters["of_bandwidth"] = benchmark::Counter(read / bandwidth, benchmark::Counter::kIsRate);
  state.counters["bandwidth"] = bandwidth * 1e-9;
  state.SetLabel(backend().name());
}

inline AttentionProblem attention_of(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
                                     Compute compute) {
  AttentionProblem problem;
  problem.heads = static_cast<int>(heads);
  problem.kv_heads = static_cast<int>(kv_heads);
  problem.head_dim = static_cast<int>(head_dim);
  problem.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  problem.compute = compute;
  return problem;
}

inline QuantizedMatrix noisy_codes(int bits, int activation_bits, bool symmetric, std::int64_t n,
                                   std::int64_t k) {
  QuantizedMatrix matrix;
  matrix.scheme.bits = bits;
  matrix.scheme.activation_bits = activation_bits;
  matrix.scheme.activation_scale = activation_bits == 16 ? ActivationScale::kNone : ActivationScale::kToken;
  matrix.scheme.granularity = bits == 8 && activation_bits == 8 ? Granularity::kChannel : Granularity::kGroup;
  matrix.scheme.group_size = 64;
  matrix.scheme.symmetric = symmetric;
  matrix.out_features = n;
  matrix.in_features = k;
  unsigned seed = 7;
  for (std::int64_t i = 0; i < n * k; ++i) {
    seed = seed * 1664525u + 1013904223u;
    matrix.codes.push_back(static_cast<std::uint8_t>(seed >> (32 - bits)));
  }
  const auto parameters = static_cast<std::size_t>(n * matrix.groups());
  matrix.scales.assign(parameters, 10.0f / 1024);  // BF16 holds it, as most that checkpoints have
  matrix.zeros.assign(parameters, static_cast<std::uint8_t>(matrix.scheme.middle()));
  return matrix;
}

}  // namespace llmq::bench
