// What one decoded token waits for: weights and pages read from memory, each call the next of 192 MB, so that
// no cache helps. GB/s, and the fraction of the bandwidth measured beside. With more rows the same weights
// serve them all: the rate of products is shown beside.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "bench/bench.h"

namespace llmq::bench {
namespace {

constexpr double kBeyondCaches = 192e6;

// kind: 0 4 bits symmetric, 1 4 bits asymmetric, 2 8 bits symmetric, in groups of 64; 3 INT8 per channel with
// inputs in 8 bits; 4 dense BF16; 5 NVFP4, 6 MXFP4, 7 NF4 in blocks of 64 with FP32 scales; 8 is 0 with
// inputs in 8 bits.
QuantizedMatrix float_codes(std::int64_t kind, std::int64_t n, std::int64_t k) {
  QuantizedMatrix matrix = noisy_codes(4, 16, true, n, k);
  const auto regroup = [&](int group, float scale) {
    matrix.scheme.group_size = group;
    matrix.scales.assign(static_cast<std::size_t>(n * matrix.groups()), scale);
    matrix.zeros.assign(matrix.scales.size(), 0);
  };
  if (kind == 7) {
    regroup(64, 0.01f);
    matrix.code_values.emplace();
    for (int i = 0; i < 16; ++i)
      matrix.code_values->values[i] = std::tanh(0.2f * static_cast<float>(i) - 1.5f);
    return matrix;
  }
  matrix.scheme.weight_type = WeightType::kFloat4;
  matrix.global_scale = 2688;
  if (kind == 5)
    regroup(kNvfp4Group, 26 / matrix.global_scale);
  else
    regroup(kMxGroup, 1.0f / 128);
  return matrix;
}

std::unique_ptr<PreparedWeight> weight_of(std::int64_t kind, std::int64_t n, std::int64_t k) {
  if (kind == 8) return backend().prepare_quantized(noisy_codes(4, 8, true, n, k), Compute::kBFloat16);
  if (kind >= 5) return backend().prepare_quantized(float_codes(kind, n, k), Compute::kBFloat16);
  if (kind == 4) return backend().prepare(tensor(DType::kF32, {n, k}, 1).view, Compute::kBFloat16);
  return backend().prepare_quantized(noisy_codes(kind < 2 ? 4 : 8, kind == 3 ? 8 : 16, kind != 1, n, k),
                                     Compute::kBFloat16);
}

// state: kind, rows, in_features, out_features, whether the weights come from memory
void packed_linear(benchmark::State& state) {
  const std::int64_t m = state.range(1), k = state.range(2), n = state.range(3);
  std::vector<std::unique_ptr<PreparedWeight>> weights;
  weights.push_back(weight_of(state.range(0), n, k));
  const auto bytes = static_cast<double>(weights[0]->bytes);
  if (state.range(4) != 0)
    while (static_cast<double>(weights.size()) * bytes < kBeyondCaches)
      weights.push_back(weight_of(state.range(0), n, k));
  const Owned x = tensor(DType::kBF16, {m, k}, 2), y = tensor(DType::kF32, {m, n}, 3);
  std::size_t next = 0;
  against_bandwidth(state, bytes, [&] {
    backend().linear(y.view, x.view, *weights[next], {});
    next = (next + 1) % weights.size();
  });
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * static_cast<double>(m * n * k) * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate);
}

// One new row of each of `batch` sequences after `context` others.
void decode_attention(benchmark::State& state) {
  const Compute compute = state.range(0) == 0 ? Compute::kFloat32 : Compute::kBFloat16;
  const std::int64_t batch = state.range(1), context = state.range(2), blocks_each = (context + 16) / 16;
  const AttentionProblem problem = attention_of(state.range(3), state.range(4), state.range(5), compute);
  const DType dtype = activation_dtype(compute);
  const Shape pages{batch * blocks_each, 16, problem.kv_heads, problem.head_dim};
  const double bytes = 2.0 * static_cast<double>(batch * (context + 1)) * problem.kv_heads *
                       problem.head_dim * dtype_row(dtype).block_bytes;
  const auto layers = std::max<std::size_t>(1, static_cast<std::size_t>(std::ceil(kBeyondCaches / bytes)));
  std::vector<Owned> keys, values;
  for (std::size_t i = 0; i < layers; ++i) {
    keys.push_back(tensor(dtype, pages, static_cast<unsigned>(2 * i)));
    values.push_back(tensor(dtype, pages, static_cast<unsigned>(2 * i + 1)));
  }
  const Owned q = tensor(DType::kF32, {batch, problem.heads, problem.head_dim}, 3);
  const Owned out = tensor(dtype, {batch, static_cast<std::int64_t>(problem.heads) * problem.head_dim}, 4);
  std::vector<std::int32_t> table(static_cast<std::size_t>(batch * blocks_each));
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i);
  std::vector<SequenceRows> sequences;
  for (std::int64_t s = 0; s < batch; ++s)
    sequences.push_back(
        {s, 1, context,
         std::span<const std::int32_t>(table).subspan(static_cast<std::size_t>(s * blocks_each),
                                                      static_cast<std::size_t>(blocks_each))});
  std::size_t next = 0;
  against_bandwidth(state, bytes, [&] {
    backend().attention(out.view, q.view, {keys[next].view, values[next].view, 16}, sequences, problem);
    next = (next + 1) % layers;
  });
}

BENCHMARK(packed_linear)
    ->ArgNames({"kind", "M", "K", "N", "from_memory"})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond)
    ->ArgsProduct({{0, 1, 2, 3, 4, 8}, {1}, {1536}, {576}, {0, 1}})
    ->ArgsProduct({{0, 1, 2, 3, 4, 5, 6, 7, 8}, {1}, {4096}, {4096}, {1}})
    ->ArgsProduct({{0, 3, 4, 5, 6, 7, 8}, {2, 4, 8, 16, 64}, {1536}, {1536}, {1}});
BENCHMARK(decode_attention)
    ->ArgNames({"bf16", "batch", "context", "heads", "kv", "dim"})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond)
    ->Args({1, 1, 511, 9, 3, 64})
    ->Args({1, 1, 8191, 32, 8, 128})
    ->Args({0, 1, 8191, 32, 8, 128})
    ->Args({1, 16, 1023, 9, 3, 64});

}  // namespace
}  // namespace llmq::bench
