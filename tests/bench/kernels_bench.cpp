// Speed of the CPU's operations at the shapes of a small and a middling model: GFLOP/s, and the fraction of
// what registers alone allow.
#include <vector>

#include "bench/bench.h"

namespace llmq::bench {
namespace {

Compute compute_of(std::int64_t word) { return word == 0 ? Compute::kFloat32 : Compute::kBFloat16; }
ArithmeticKind peak_of(Compute compute) {
  return compute == Compute::kFloat32 ? ArithmeticKind::kF32 : ArithmeticKind::kBF16;
}

void linear(benchmark::State& state) {
  const Compute compute = compute_of(state.range(0));
  const std::int64_t m = state.range(1), k = state.range(2), n = state.range(3);
  const Owned weight = tensor(DType::kF32, {n, k}, 1), x = tensor(activation_dtype(compute), {m, k}, 2),
              y = tensor(DType::kF32, {m, n}, 3);
  const auto prepared = backend().prepare(weight.view, compute);
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  against_peak(state, peak_of(compute), flops, [&] { backend().linear(y.view, x.view, *prepared, {}); });
}

// The same product with inputs rounded to 8 bits in the call, against the BF16 peak: 0 INT8 per channel, 1
// INT8 with weights of 4 bits in groups of 64, 2 E4M3.
void low_precision_linear(benchmark::State& state) {
  const std::int64_t kind = state.range(0), m = state.range(1), k = state.range(2), n = state.range(3);
  QuantizedMatrix matrix = noisy_codes(kind == 1 ? 4 : 8, 8, true, n, k);
  if (kind == 2) matrix.scheme.weight_type = WeightType::kFloat8;
  if (kind == 2)
    for (std::uint8_t& code : matrix.codes) code = static_cast<std::uint8_t>(code % 120);  // finite E4M3
  const Owned x = tensor(DType::kBF16, {m, k}, 2), y = tensor(DType::kF32, {m, n}, 3);
  const auto prepared = backend().prepare_quantized(matrix, Compute::kBFloat16);
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  against_peak(state, ArithmeticKind::kBF16, flops, [&] { backend().linear(y.view, x.view, *prepared, {}); });
}

void gram(benchmark::State& state) {
  const Compute compute = compute_of(state.range(0));
  const std::int64_t t = state.range(1), k = state.range(2);
  const Owned x = tensor(activation_dtype(compute), {t, k}, 2), g = tensor(DType::kF32, {k, k}, 3);
  const double flops = static_cast<double>(t) * static_cast<double>(k) * static_cast<double>(k + 1);
  against_peak(state, peak_of(compute), flops, [&] { backend().gram(g.view, x.view); });
}

void quadratic_form(benchmark::State& state) {
  const Compute compute = compute_of(state.range(0));
  const std::int64_t r = state.range(1), k = state.range(2);
  const Owned square = tensor(DType::kF32, {k, k}, 1), d = tensor(DType::kF32, {r, k}, 2);
  const auto prepared = backend().prepare(square.view, compute);
  std::vector<double> loss(static_cast<std::size_t>(r));
  const double flops = static_cast<double>(r) * static_cast<double>(k) * static_cast<double>(k + 1);
  against_peak(state, peak_of(compute), flops, [&] { backend().quadratic_form(loss, d.view, *prepared); });
}

// One sequence of `length` rows; a visible (query, key) pair costs 4 head_dim operations per head.
void attention(benchmark::State& state) {
  const Compute compute = compute_of(state.range(0));
  const std::int64_t length = state.range(1);
  const AttentionProblem problem = attention_of(state.range(2), state.range(3), state.range(4), compute);
  const std::int64_t blocks = (length + 15) / 16;
  const DType dtype = activation_dtype(compute);
  const Shape page{blocks, 16, problem.kv_heads, problem.head_dim};
  const Owned keys = tensor(dtype, page, 1), values = tensor(dtype, page, 2);
  const Owned q = tensor(DType::kF32, {length, problem.heads, problem.head_dim}, 3);
  const Owned out = tensor(dtype, {length, static_cast<std::int64_t>(problem.heads) * problem.head_dim}, 4);
  std::vector<std::int32_t> table(static_cast<std::size_t>(blocks));
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i);
  const std::vector<SequenceRows> sequences = {{0, length, 0, table}};
  const double pairs = static_cast<double>(length) * static_cast<double>(length + 1) / 2;
  const double flops = 4.0 * pairs * problem.heads * problem.head_dim;
  against_peak(state, peak_of(compute), flops, [&] {
    backend().attention(out.view, q.view, {keys.view, values.view, 16}, sequences, problem);
  });
}

void scores(benchmark::State& state) {
  const std::int64_t rows = state.range(0), vocabulary = state.range(1);
  const Owned logits = tensor(DType::kF32, {rows, vocabulary}, 1),
              other = tensor(DType::kF32, {rows, vocabulary}, 2);
  const std::vector<std::int32_t> targets(static_cast<std::size_t>(rows), 7);
  std::vector<RowScore> out(static_cast<std::size_t>(rows));
  std::vector<double> kl(static_cast<std::size_t>(rows));
  for (auto _ : state) {
    if (state.range(2) == 0)
      backend().score_rows(logits.view, targets, out);
    else
      backend().divergence(logits.view, other.view, kl);
  }
  state.counters["rows/s"] =
      benchmark::Counter(static_cast<double>(rows * state.iterations()), benchmark::Counter::kIsRate);
  state.SetLabel(backend().name());
}

void elementwise(benchmark::State& state) {
  const std::int64_t rows = 2048, wide = 1536, hidden = 576;
  const Owned gate = tensor(DType::kF32, {rows, wide}, 1), up = tensor(DType::kF32, {rows, wide}, 2),
              y = tensor(DType::kBF16, {rows, wide}, 3);
  const Owned x = tensor(DType::kF32, {rows, hidden}, 4), gain = tensor(DType::kF32, {hidden}, 5),
              normed = tensor(DType::kBF16, {rows, hidden}, 6);
  for (auto _ : state) {
    if (state.range(0) == 0) backend().gated_activation(y.view, gate.view, up.view, Activation::kSilu);
    if (state.range(0) == 1) backend().rms_norm(normed.view, x.view, gain.view, 1e-5f);
  }
  state.counters["rows/s"] =
      benchmark::Counter(static_cast<double>(rows * state.iterations()), benchmark::Counter::kIsRate);
}

BENCHMARK(linear)
    ->ArgNames({"bf16", "M", "K", "N"})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond)
    ->ArgsProduct({{0, 1}, {2047}, {576}, {192, 576, 1536}})
    ->ArgsProduct({{0, 1}, {2047}, {1536}, {576, 1536}})
    ->Args({1, 512, 4096, 4096})
    ->Args({1, 256, 576, 49152})
    ->Args({1, 1, 576, 49152})
    ->Args({1, 1, 1536, 576});
BENCHMARK(low_precision_linear)
    ->ArgNames({"kind", "M", "K", "N"})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond)
    ->ArgsProduct({{0, 1, 2}, {2047}, {576}, {1536}})
    ->ArgsProduct({{0, 1, 2}, {512}, {4096}, {4096}})
    ->ArgsProduct({{0, 1, 2}, {1}, {1536}, {576}});
BENCHMARK(gram)
    ->ArgNames({"bf16", "T", "K"})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond)
    ->ArgsProduct({{0, 1}, {4096}, {576, 1536}});
BENCHMARK(quadratic_form)
    ->ArgNames({"bf16", "R", "K"})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond)
    ->ArgsProduct({{0, 1}, {1536}, {576, 1536}});
BENCHMARK(attention)
    ->ArgNames({"bf16", "S", "heads", "kv", "dim"})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond)
    ->Args({1, 2048, 9, 3, 64})
    ->Args({0, 2048, 9, 3, 64})
    ->Args({1, 512, 8, 8, 128});
BENCHMARK(scores)
    ->ArgNames({"rows", "vocabulary", "kl"})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond)
    ->Args({256, 49152, 0})
    ->Args({256, 49152, 1});
BENCHMARK(elementwise)->ArgName("norm")->UseRealTime()->Unit(benchmark::kMillisecond)->Arg(0)->Arg(1);

}  // namespace
}  // namespace llmq::bench

BENCHMARK_MAIN();
