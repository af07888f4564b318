// The parts of GPTQ: the FP64 factor beside the FP64 products that registers allow (half of FP32's), rounding
// of a whole linear and its losses beside FP32's. Weights and inputs are noise; half of the inputs' channels
// follow the one before, so that errors have somewhere to go.
#include <algorithm>
#include <memory>
#include <vector>

#include "base/half.h"
#include "base/zeroed_numbers.h"
#include "bench/bench.h"
#include "calibration/input_stats.h"
#include "quant/methods/gptq/factorization.h"
#include "quant/methods/gptq/gptq.h"
#include "quant/methods/gram_loss.h"

namespace llmq::bench {
namespace {

InputStats statistics_of(std::int64_t channels) {
  const std::int64_t tokens = 2 * channels;
  std::vector<float> rows = noise(static_cast<std::size_t>(tokens * channels), 5);
  for (std::size_t i = 1; i < rows.size(); i += 2) rows[i] = 0.5f * (rows[i] + rows[i - 1]);
  InputStats stats(channels);
  stats.add(backend(), TensorView(rows.data(), DType::kF32, {tokens, channels}));
  return stats;
}

double mean_diagonal(const InputStats& stats) {
  double sum = 0;
  for (std::int64_t k = 0; k < stats.channels(); ++k) sum += stats.gram_at(k, k);
  return sum / static_cast<double>(stats.channels());
}

// K^3 / 3 operations in FP64.
void cholesky(benchmark::State& state) {
  const std::int64_t k = state.range(0);
  const InputStats stats = statistics_of(k);
  const double mean = mean_diagonal(stats),
               flops = static_cast<double>(k) * static_cast<double>(k) * static_cast<double>(k) / 3;
  against_peak(state, ArithmeticKind::kF32, 2 * flops, [&] {
    factorize(
        k, 0.01, mean, [&](std::int64_t i, std::int64_t j) { return stats.gram_at(i, j); }, backend());
  });
}

// sweeps: of the descent afterwards. K^2 + 2 K^2 sweeps products per row.
void gptq(benchmark::State& state) {
  const int sweeps = static_cast<int>(state.range(0));
  const std::int64_t k = state.range(1), n = state.range(2);
  const InputStats stats = statistics_of(k);
  const std::vector<float> weight = noise(static_cast<std::size_t>(n * k), 9);
  GptqOptions options;
  options.descent_sweeps = sweeps;
  const std::unique_ptr<Method> method = make_gptq(options, Compute::kBFloat16);
  GramLoss gram(stats, backend(), Compute::kBFloat16);
  std::unique_ptr<PreparedInput> prepared;
  RoundingProblem problem;
  problem.weight = weight;
  problem.out_features = n;
  problem.in_features = k;
  problem.stats = &stats;
  problem.scheme.bits = 4;
  problem.scheme.granularity = Granularity::kGroup;
  problem.scheme.group_size = 64;
  problem.scheme.symmetric = true;
  problem.gram = &gram;
  problem.prepared = &prepared;
  const double flops =
      2.0 * (1 + 2 * sweeps) * static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(k);
  against_peak(state, ArithmeticKind::kF32, flops, [&] { method->quantize(problem, backend()); });
}

// The FP64 triangle of K channels, all its pages touched: a vector (0), or ZeroedNumbers by all threads (1).
void cleared_triangle(benchmark::State& state) {
  const std::size_t numbers = static_cast<std::size_t>(state.range(1) * (state.range(1) + 1) / 2);
  constexpr std::size_t kPart = std::size_t{1} << 18;
  for (auto _ : state) {
    if (state.range(0) == 0) {
      std::vector<double> triangle(numbers);
      benchmark::DoNotOptimize(triangle.data());
    } else {
      ZeroedNumbers<double> triangle(numbers);
      backend().workers().parallel_for(numbers / kPart, [&](std::size_t part, int) {
        for (std::size_t i = 0; i < kPart; i += 512) triangle[part * kPart + i] = 1;
      });
      benchmark::DoNotOptimize(triangle.data());
    }
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(numbers * sizeof(double)));
}

// A chunk's rows of one expert among 16, BF16: their Gram matrix (0), or that and its addition to the
// expert's sum (1).
void expert_sums(benchmark::State& state) {
  const std::int64_t k = state.range(1), rows = state.range(2);
  const std::vector<float> numbers = noise(static_cast<std::size_t>(rows * k), 5);
  std::vector<BFloat16> x(numbers.size());
  std::transform(numbers.begin(), numbers.end(), x.begin(), [](float v) { return to_bfloat16(v); });
  std::vector<ExactSums> sums;
  GramSquare square(backend(), k);
  for (int expert = 0; expert < 16; ++expert) {
    sums.emplace_back(triangle_place(k, k));
    backend().drain_gram(sums.back(), square.view());  // every page is touched
  }
  std::size_t at = 0;
  for (auto _ : state) {
    backend().gram(square.view(), TensorView(x.data(), DType::kBF16, {rows, k}));
    if (state.range(0) == 1) backend().drain_gram(sums[at++ % sums.size()], square.view());
  }
}

BENCHMARK(expert_sums)
    ->ArgNames({"added", "K", "rows"})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond)
    ->ArgsProduct({{0, 1}, {768, 2048}, {64, 256}});
BENCHMARK(cleared_triangle)
    ->ArgNames({"zeroed", "K"})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond)
    ->ArgsProduct({{0, 1}, {14336}});
BENCHMARK(cholesky)
    ->ArgName("K")
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond)
    ->Arg(576)
    ->Arg(1536)
    ->Arg(4096);
BENCHMARK(gptq)
    ->ArgNames({"sweeps", "K", "N"})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond)
    ->ArgsProduct({{0, 1}, {576}, {576, 1536}})
    ->ArgsProduct({{0, 1}, {1536}, {576}})
    ->Args({1, 4096, 1024});

}  // namespace
}  // namespace llmq::bench
