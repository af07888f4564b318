// Times operations of one backend at the shapes that matter on a GPU, as lines of CSV.   device_bench DEVICE [small]
//
// operation,shape,microseconds (median),GB/s,TFLOP/s. Bytes are the least an operation must move, each operand once. Weights of few rows are
// taken in turn from a gigabyte of them, so that no cache holds the next. A sample is a run of calls up to a wait for the device, of
// 20 ms or more, after a warm-up. "small" is for trying the program itself.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "base/half.h"
#include "device/backend.h"
#include "device/machine_peaks.h"

namespace llmq {
namespace {

using Clock = std::chrono::steady_clock;

class Bits {
 public:
  std::uint32_t next() {
    state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
    return static_cast<std::uint32_t>(state_ >> 32);
  }
  float number() { return static_cast<float>(next() >> 8) * 0x1p-23f - 1.0f; }  // [-1, 1)

 private:
  std::uint64_t state_ = 0x9e3779b97f4a7c15u;
};

struct Device {
  Backend& backend;
  Bits bits;
  std::vector<Buffer> kept;

  TensorView random(DType dtype, Shape shape) {
    std::vector<float> numbers(static_cast<std::size_t>(shape.elements()));
    for (float& number : numbers) number = bits.number();
    kept.push_back(backend.allocate(numbers.size() * sizeof(float)));
    const TensorView wide = kept.back().view(DType::kF32, shape);
    backend.upload(wide, numbers.data());
    if (dtype == DType::kF32) return wide;
    kept.push_back(backend.allocate(numbers.size() * 2));
    const TensorView narrow = kept.back().view(dtype, shape);
    backend.convert(narrow, wide);
    return narrow;
  }
};

// Calls until a sample has lasted 20 ms, of nine samples the median.
void report(Backend& backend, const std::string& operation, const std::string& shape, double bytes, double operations, const std::function<void(int)>& call) {
  int number = 0, calls = 1;
  const auto sample = [&] {
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) call(number++);
    backend.synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  sample();
  while (sample() < 0.02) calls *= 2;
  std::vector<double> seconds;
  for (int i = 0; i < 9; ++i) seconds.push_back(sample() / calls);
  std::nth_element(seconds.begin(), seconds.begin() + 4, seconds.end());
  std::printf("%s,%s,%.2f,%.1f,%.2f\n", operation.c_str(), shape.c_str(), seconds[4] * 1e6, bytes / seconds[4] * 1e-9, operations / seconds[4] * 1e-12);
  std::fflush(stdout);
}

QuantizedMatrix random_codes(Bits& bits, std::int64_t n, std::int64_t k, int weight_bits, int activation_bits) {
  QuantizedMatrix matrix;
  matrix.scheme.bits = weight_bits;
  matrix.scheme.activation_bits = activation_bits;
  matrix.scheme.symmetric = true;
  if (activation_bits == 8) {
    matrix.scheme.activation_scale = ActivationScale::kToken;
    matrix.scheme.granularity = Granularity::kChannel;
  }
  matrix.out_features = n;
  matrix.in_features = k;
  for (std::int64_t i = 0; i < n * k; ++i) matrix.codes.push_back(static_cast<std::uint8_t>(bits.next() % static_cast<std::uint32_t>(matrix.scheme.code_count())));
  matrix.scales.assign(static_cast<std::size_t>(n * matrix.groups()), 0.0078125f);
  matrix.zeros.assign(matrix.scales.size(), static_cast<std::uint8_t>(matrix.scheme.middle()));
  return matrix;
}

using Prepare = std::function<std::unique_ptr<PreparedWeight>()>;

// y = x W^T at each number of rows, W of `stored` bytes.
void time_linear(Device& d, const std::string& name, std::int64_t n, std::int64_t k, double stored, double cycled, const std::vector<int>& rows, const Prepare& prepare) {
  std::vector<std::unique_ptr<PreparedWeight>> weights;
  for (double bytes = 0; bytes < cycled || weights.empty(); bytes += stored) weights.push_back(prepare());
  for (const std::int64_t m : rows) {
    const TensorView x = d.random(DType::kBF16, Shape{m, k}), y = d.random(DType::kF32, Shape{m, n});
    const auto mn = static_cast<double>(m) * static_cast<double>(n), mk = static_cast<double>(m) * static_cast<double>(k);
    report(d.backend, name, fmt::format("{}x{}x{}", m, n, k), stored + 2 * mk + 4 * mn, 2 * mn * static_cast<double>(k),
           [&](int i) { d.backend.linear(y, x, *weights[static_cast<std::size_t>(i) % weights.size()], {}); });
    d.kept.clear();
  }
}

void time_attention(Device& d, std::int64_t context, int sequences) {
  const int heads = 64, kv_heads = 8, dim = 128, block = 16;
  const std::int64_t blocks = context / block + 1;
  const Shape pages{blocks * sequences, block, kv_heads, dim};
  const TensorView keys = d.random(DType::kBF16, pages), values = d.random(DType::kBF16, pages);
  const TensorView q = d.random(DType::kF32, Shape{sequences, heads, dim}), out = d.random(DType::kBF16, Shape{sequences, heads * dim});
  std::vector<std::int32_t> table(static_cast<std::size_t>(blocks * sequences));
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i);
  std::vector<SequenceRows> rows;
  for (int s = 0; s < sequences; ++s)
    rows.push_back({s, 1, context, std::span(table).subspan(static_cast<std::size_t>(s * blocks), static_cast<std::size_t>(blocks))});
  const auto numbers = static_cast<double>(context + 1) * sequences * kv_heads * dim;
  report(d.backend, "attention_decode", fmt::format("{}x{} heads 64:8 dim 128", sequences, context), 4 * numbers, 4 * numbers * heads / kv_heads,
         [&](int) { d.backend.attention(out, q, {keys, values, block}, rows, {heads, kv_heads, dim, 0.088f, 0, Compute::kBFloat16}); });
  d.kept.clear();
}

void run(Backend& backend, bool small) {
  Device d{backend, {}, {}};
  std::printf("# %s\noperation,shape,microseconds,GB/s,TFLOP/s\n", backend.name().c_str());
  const MachinePeaks peaks = measure_machine(backend);
  std::printf("read,at most,,%.1f,\n", peaks.read_bytes_per_second * 1e-9);
  for (const LevelPeak& level : peaks.arithmetic) std::printf("products,%s %s at most,,,%.2f\n", level.level.c_str(), arithmetic_name(level.kind), level.peak.by_clock * 1e-12);
  const std::int64_t wide = small ? 512 : 28672, deep = small ? 256 : 8192, elements = std::int64_t{1} << (small ? 16 : 26);
  const double cycled = small ? 1 : 1e9, weights = static_cast<double>(wide * deep);
  {
    const TensorView into = d.random(DType::kF32, Shape{elements / 1024, 1024}), x = d.random(DType::kF32, Shape{elements / 1024, 1024});
    report(backend, "add", fmt::format("{}", elements), 12.0 * static_cast<double>(elements), static_cast<double>(elements), [&](int) { backend.add(into, x); });
    d.kept.clear();
  }
  const std::vector<int> few = {1, 2, 4, 8, 16, 32}, all = {1, 2, 4, 8, 16, 32, 64, 512, 4096}, some = small ? few : all;
  std::vector<BFloat16> dense(static_cast<std::size_t>(wide * deep));
  for (BFloat16& number : dense) number = to_bfloat16(d.bits.number());
  time_linear(d, "linear_bf16", wide, deep, 2 * weights, cycled, some,
              [&] { return backend.prepare(TensorView(dense.data(), DType::kBF16, Shape{wide, deep}), Compute::kBFloat16); });
  for (const auto& [name, bits, inputs] : {std::tuple{"linear_w4a16_g128", 4, 16}, std::tuple{"linear_w8a16_g128", 8, 16}, std::tuple{"linear_w8a8", 8, 8}}) {
    const QuantizedMatrix matrix = random_codes(d.bits, wide, deep, bits, inputs);
    time_linear(d, name, wide, deep, weights * bits / 8 + 4.0 * static_cast<double>(matrix.scales.size()), cycled, some,
                [&] { return backend.prepare_quantized(matrix, Compute::kBFloat16); });
  }
  for (const int sequences : {1, 8}) time_attention(d, small ? 64 : 8192, sequences);
  const std::int64_t channels = small ? 128 : 4096, tokens = small ? 64 : 2048;
  const TensorView g = d.random(DType::kF32, Shape{channels, channels}), x = d.random(DType::kBF16, Shape{tokens, channels});
  const auto square = static_cast<double>(channels) * static_cast<double>(channels);
  report(backend, "gram", fmt::format("{}x{}", tokens, channels), 4 * square + 2.0 * static_cast<double>(tokens * channels), square * static_cast<double>(tokens),
         [&](int) { backend.gram(g, x); });
}

}  // namespace
}  // namespace llmq

int main(int count, char** words) {
  try {
    const bool small = count == 3 && std::strcmp(words[2], "small") == 0;
    if (count != 2 && !small) {
      std::fprintf(stderr, "device_bench DEVICE [small]\n");
      return 2;
    }
    llmq::run(*llmq::make_backend({words[1]}), small);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "device_bench: %s\n", error.what());
    return 2;
  }
}
