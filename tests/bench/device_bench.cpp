// Times operations of one backend at the shapes that matter on a GPU, as lines of CSV, and says
// which bars it reaches.   device_bench DEVICE [small] [OPERATION...]
//
// operation,shape,microseconds (median),GB/s,TFLOP/s, then fractions of the measured read bandwidth and of
// the measured products of its type, and what stands beside it. Bytes are the least an operation must move,
// each operand once; a Gram matrix's operations are those of its upper triangle. Weights of few rows, and
// keys and values, are taken in turn from a gigabyte of them, so that no cache holds the next. Products and
// Gram matrices of calibration are those of a backend for calibration (DeviceUse), which are cuBLASLt's where
// it can be opened; the own kernels' stand beside them. So do codes that are dequantized for the library
// (cublas_baseline.h). At the end stand the bars (device_bars.h). "small" is for trying the program itself;
// where operations are named, only those are timed.
#include <algorithm>
#include <cstdio>
#include <string>
#include <tuple>
#include <vector>

#include "base/half.h"
#include "bench/timed_device.h"
#include "tensor/packed_layout.h"

namespace llmq {
namespace {

QuantizedMatrix random_codes(Bits& bits, std::int64_t n, std::int64_t k, int weight_bits,
                             int activation_bits) {
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
  for (std::int64_t i = 0; i < n * k; ++i)
    matrix.codes.push_back(
        static_cast<std::uint8_t>(bits.next() % static_cast<std::uint32_t>(matrix.scheme.code_count())));
  matrix.scales.assign(static_cast<std::size_t>(n * matrix.groups()), 0.0078125f);
  matrix.zeros.assign(matrix.scales.size(), static_cast<std::uint8_t>(matrix.scheme.middle()));
  return matrix;
}

// E2M1 with E4M3 scales or exponents.
QuantizedMatrix random_floats(Bits& bits, std::int64_t n, std::int64_t k, int group) {
  QuantizedMatrix matrix = random_codes(bits, n, k, 4, 16);
  matrix.scheme.weight_type = WeightType::kFloat4;
  matrix.scheme.group_size = group;
  matrix.global_scale = 1;
  matrix.scales.assign(static_cast<std::size_t>(n * matrix.groups()), 0.0078125f);
  matrix.zeros.assign(matrix.scales.size(), 0);
  return matrix;
}

std::vector<BFloat16> random_numbers(Bits& bits, std::int64_t n, std::int64_t k) {
  std::vector<BFloat16> numbers(static_cast<std::size_t>(n * k));
  for (BFloat16& number : numbers) number = to_bfloat16(bits.number());
  return numbers;
}

// What a product is, but for its rows.
struct Product {
  std::string operation;
  std::int64_t n = 0, k = 0;
  double stored = 0;  // bytes of the weight
  ArithmeticKind kind = ArithmeticKind::kBF16;

  // y = x W^T
  Measured at(std::int64_t m) const {
    const auto mn = static_cast<double>(m) * static_cast<double>(n),
               mk = static_cast<double>(m) * static_cast<double>(k);
    return {operation, fmt::format("{}x{}x{}", m, n, k), m,
            0,         stored + 2 * mk + 4 * mn,         2 * mn * static_cast<double>(k),
            kind};
  }
};

void time_linear(TimedDevice& d, const Product& of, const std::vector<int>& rows,
                 const std::function<std::unique_ptr<PreparedWeight>()>& prepare) {
  std::vector<std::unique_ptr<PreparedWeight>> weights;
  for (double bytes = 0; bytes < d.cycled || weights.empty(); bytes += of.stored)
    weights.push_back(prepare());
  for (const std::int64_t m : rows) {
    const TensorView x = d.random(DType::kBF16, Shape{m, of.k}), y = d.random(DType::kF32, Shape{m, of.n});
    d.report(d.time(of.at(m), [&](int i) {
      d.backend.linear(y, x, *weights[static_cast<std::size_t>(i) % weights.size()], {});
    }));
    d.kept.clear();
  }
}

// The codes are dequantized to BF16 and multiplied by cuBLASLt, in every call.
void time_dequantized(TimedDevice& d, const Product& codes, const QuantizedMatrix& matrix,
                      const std::vector<int>& rows) {
  const std::unique_ptr<PreparedWeight> weight = d.backend.prepare_quantized(matrix, Compute::kBFloat16);
  const std::vector<std::uint32_t> packed = pack_bit_stream(matrix.codes, codes.n, codes.k, 4);
  const TensorView w = d.random(DType::kBF16, Shape{codes.n, codes.k});
  const cuda::Dequantize4 first{static_cast<std::int64_t>(packed.size()), nullptr, d.copied(matrix.scales),
                                d.copied(matrix.zeros), w.as<cuda::Dequantize4::Vector>()};
  std::vector<cuda::Dequantize4> weights;
  for (double bytes = 0; bytes < d.cycled || weights.empty(); bytes += codes.stored) {
    weights.push_back(first);
    weights.back().codes = d.copied(packed);
  }
  Product of = codes;
  of.operation = measured::kDequantized;
  for (const std::int64_t m : rows) {
    const TensorView x = d.random(DType::kBF16, Shape{m, of.k}), y = d.random(DType::kF32, Shape{m, of.n});
    const auto ours = [&](int) { d.backend.linear(y, x, *weight, {}); };
    const auto theirs = [&](int i) {
      d.cublas->dequantize(weights[static_cast<std::size_t>(i) % weights.size()]);
      d.cublas->multiply(y, x, w);
    };
    if (const std::optional<Measured> line = d.time_cublas(of.at(m), y, ours, theirs)) d.report(*line);
  }
  d.kept.clear();
}

// What the library reaches with room to spread: products of calibration are held against it.
void time_large_product(TimedDevice& d) {
  const std::int64_t n = 8192;
  const std::vector<BFloat16> numbers = random_numbers(d.bits, n, n);
  const std::unique_ptr<PreparedWeight> weight =
      d.backend.prepare(TensorView(numbers.data(), DType::kBF16, Shape{n, n}), Compute::kBFloat16);
  const TensorView x = d.random(DType::kBF16, Shape{n, n}), y = d.random(DType::kF32, Shape{n, n}),
                   w(d.copied(numbers), DType::kBF16, Shape{n, n});
  if (const std::optional<Measured> line = d.time_cublas(
          Product{measured::kLargeProduct, n, n, 2 * static_cast<double>(n * n)}.at(n), y,
          [&](int) { d.backend.linear(y, x, *weight, {}); }, [&](int) { d.cublas->multiply(y, x, w); }))
    d.report(*line);
  d.kept.clear();
}

// The linears of Qwen3-32B over a chunk of calibration, and the Gram matrices of their inputs.
void time_calibration(TimedDevice& d, Backend& calibration, std::int64_t divided) {
  bool library = false;
  const std::int64_t hidden = 5120 / divided, q = 8192 / divided, kv = 1024 / divided,
                     inner = 25600 / divided, rows = 4096 / divided;
  Measured fastest;
  for (const auto& [name, n, k] : {std::tuple{"q", q, hidden},
                                   {"kv", kv, hidden},
                                   {"o", hidden, q},
                                   {"gate_up", inner, hidden},
                                   {"down", hidden, inner}}) {
    Measured line = Product{measured::kCalibration, n, k, 2 * static_cast<double>(n * k)}.at(rows);
    line.shape = fmt::format("{} {}", name, line.shape);
    const std::vector<BFloat16> numbers = random_numbers(d.bits, n, k);
    const TensorView x = d.random(DType::kBF16, Shape{rows, k}), y = d.random(DType::kF32, Shape{rows, n});
    const TensorView w(numbers.data(), DType::kBF16, Shape{n, k});
    const std::unique_ptr<PreparedWeight> weight = calibration.prepare(w, Compute::kBFloat16);
    const auto multiply = [&](int) { calibration.linear(y, x, *weight, {}); };
    const Measured ours = d.time_on(calibration, line, multiply);
    std::string beside = weight->kernel;
    const std::unique_ptr<PreparedWeight> own = d.backend.prepare(w, Compute::kBFloat16);
    if (weight->kernel != own->kernel) {
      library = true;
      const std::vector<float> theirs = d.first_rows(y);
      line.operation = "calibration_own";
      const Measured plain = d.time(line, [&](int) { d.backend.linear(y, x, *own, {}); });
      require_alike(theirs, d.first_rows(y), "the library's product " + line.shape);
      d.report(plain);
      beside = fmt::format("{:.3f} of calibration_own by {}", rate(ours) / rate(plain), weight->kernel);
    }
    std::replace(beside.begin(), beside.end(), ',', ';');
    d.report(ours, beside);
    if (fastest.seconds == 0 || rate(ours) > rate(fastest)) fastest = ours;
    d.kept.clear();
  }
  for (const std::int64_t channels : {hidden, q, inner}) {
    d.kept.push_back(d.backend.allocate(static_cast<std::size_t>(channels * channels) * sizeof(float)));
    const TensorView g = d.kept.back().view(DType::kF32, Shape{channels, channels});
    d.backend.clear(g);
    const TensorView x = d.random(DType::kBF16, Shape{rows, channels});
    const auto square = static_cast<double>(channels) * static_cast<double>(channels);
    Measured line{measured::kGram,
                  fmt::format("{}x{}", rows, channels),
                  rows,
                  0,
                  4 * square + 2 * static_cast<double>(rows * channels),
                  square * static_cast<double>(rows)};
    const Measured gram = d.time_on(calibration, line, [&](int) { calibration.gram(g, x); });
    d.report(gram,
             fmt::format("{:.3f} of {} {}", rate(gram) / rate(fastest), fastest.operation, fastest.shape));
    line.operation = "gram_own";
    if (library) d.report(d.time(line, [&](int) { d.backend.gram(g, x); }));
    d.kept.clear();
  }
}

void time_attention(TimedDevice& d, std::int64_t context, std::int64_t sequences) {
  const int heads = 64, kv_heads = 8, dim = 128, block = 16;
  const std::int64_t blocks = context / block + 1;  // of a sequence
  const auto numbers = static_cast<double>((context + 1) * sequences * kv_heads * dim);
  const auto batches = static_cast<std::int64_t>(d.cycled / (4 * numbers)) + 1;
  const Shape pages{blocks * sequences * batches, block, kv_heads, dim};
  const TensorView keys = d.random(DType::kBF16, pages), values = d.random(DType::kBF16, pages);
  const TensorView q = d.random(DType::kF32, Shape{sequences, heads, dim}),
                   out = d.random(DType::kBF16, Shape{sequences, heads * dim});
  std::vector<std::int32_t> table(static_cast<std::size_t>(pages[0]));
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i);
  std::vector<std::vector<SequenceRows>> rows(static_cast<std::size_t>(batches));
  for (std::int64_t s = 0; s < sequences * batches; ++s)
    rows[static_cast<std::size_t>(s / sequences)].push_back(
        {s % sequences, 1, context,
         std::span(table).subspan(static_cast<std::size_t>(s * blocks), static_cast<std::size_t>(blocks))});
  d.report(d.time({measured::kAttention, fmt::format("{}x{} heads 64:8 dim 128", sequences, context),
                   sequences, 0, 4 * numbers, 4 * numbers * heads / kv_heads},
                  [&](int i) {
                    d.backend.attention(out, q, {keys, values, block},
                                        rows[static_cast<std::size_t>(i) % rows.size()],
                                        {heads, kv_heads, dim, 0.088f, 0, Compute::kBFloat16});
                  }));
  d.kept.clear();
}

void print_bars(const TimedDevice& d, bool small) {
  std::printf("# bars%s\nbar,wanted,measured,at,verdict\n",
              small ? " of the real shapes: at those above they say nothing of the device" : "");
  for (const Verdict& v : verdicts(d.lines, d.limits))
    std::printf("%s,%s,%s,%s,%s\n", v.bar.c_str(), v.wanted.c_str(),
                v.value ? fmt::format("{:.3f}", *v.value).c_str() : "", v.where.c_str(), v.word());
  const std::vector<RowTimes> times = side_by_side(d.lines, measured::kCodes4, measured::kInt8);
  std::printf("# microseconds\nrows,%s,%s,the first over the second\n", measured::kCodes4, measured::kInt8);
  for (const RowTimes& t : times)
    std::printf("%lld,%.2f,%.2f,%.2f\n", static_cast<long long>(t.rows), t.first * 1e6, t.second * 1e6,
                t.first / t.second);
  const std::optional<std::int64_t> at = overtaken_at(times);
  std::printf("# %s is the faster %s\n", measured::kInt8,
              at ? fmt::format("from {} row{} on", *at, *at == 1 ? "" : "s").c_str() : "at none of these");
}

void run(Backend& backend, Backend& calibration, bool small, const std::vector<std::string>& names) {
  const auto asked = [&](const std::string& operation) {
    return names.empty() || std::find(names.begin(), names.end(), operation) != names.end();
  };
  TimedDevice d{backend, small ? 1 : 1e9};
  std::printf("# %s\n", backend.name().c_str());
  const bool gpu = backend.name().starts_with("cuda:");
  std::string missing = gpu ? find_cublaslt().missing : "this is no GPU";
  try {
    if (missing.empty()) d.cublas = make_cublas_baseline(backend.device().index);
  } catch (const std::exception& error) {
    missing = error.what();
  }
  std::printf("# cuBLASLt %s\n", missing.empty() ? find_cublaslt().version.c_str()
                                                 : fmt::format("is left out: {}", missing).c_str());
  std::printf("operation,shape,microseconds,GB/s,TFLOP/s,of read,of products,beside\n");
  const MachinePeaks peaks = measure_machine(backend);
  d.limits = limits_of(peaks);
  std::printf("read,at most,,%.1f,,,,\n", peaks.read_bytes_per_second * 1e-9);
  for (const LevelPeak& level : peaks.arithmetic)
    std::printf("products,%s %s at most,,,%.2f,,,\n", level.level.c_str(), arithmetic_name(level.kind),
                level.peak.by_clock * 1e-12);
  const std::int64_t wide = small ? 512 : 28672, deep = small ? 256 : 8192,
                     elements = std::int64_t{1} << (small ? 16 : 26);
  const double weights = static_cast<double>(wide * deep);
  if (asked("add")) {
    const TensorView into = d.random(DType::kF32, Shape{elements / 1024, 1024}),
                     x = d.random(DType::kF32, Shape{elements / 1024, 1024});
    const auto all = static_cast<double>(elements);
    d.report(
        d.time({"add", fmt::format("{}", elements), elements / 1024, 0, 12 * all, all, ArithmeticKind::kF32},
               [&](int) { backend.add(into, x, 1); }));
    d.kept.clear();
  }
  const std::vector<int> few = {1, 2, 4, 8, 16}, all = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 4096},
                         some = small ? few : all;
  if (asked("linear_bf16")) {
    const std::vector<BFloat16> dense = random_numbers(d.bits, wide, deep);
    time_linear(d, {"linear_bf16", wide, deep, 2 * weights}, some, [&] {
      return backend.prepare(TensorView(dense.data(), DType::kBF16, Shape{wide, deep}), Compute::kBFloat16);
    });
  }
  for (const auto& [name, bits, inputs, kind] : {std::tuple{measured::kCodes4, 4, 16, ArithmeticKind::kBF16},
                                                 {"linear_w8a16_g128", 8, 16, ArithmeticKind::kBF16},
                                                 {measured::kInt8, 8, 8, ArithmeticKind::kInt8}}) {
    if (!asked(name)) continue;
    const QuantizedMatrix matrix = random_codes(d.bits, wide, deep, bits, inputs);
    const Product of{name, wide, deep, weights * bits / 8 + 4.0 * static_cast<double>(matrix.scales.size()),
                     kind};
    time_linear(d, of, some, [&] { return backend.prepare_quantized(matrix, Compute::kBFloat16); });
    if (d.cublas && name == measured::kCodes4) time_dequantized(d, of, matrix, few);
  }
  for (const auto& [name, group] : {std::pair{"linear_nvfp4a16", kNvfp4Group}, {"linear_mxfp4", kMxGroup}}) {
    if (!asked(name)) continue;
    const QuantizedMatrix matrix = random_floats(d.bits, wide, deep, group);
    time_linear(d, {name, wide, deep, weights / 2 + static_cast<double>(matrix.scales.size())}, some,
                [&] { return backend.prepare_quantized(matrix, Compute::kBFloat16); });
  }
  if (asked(measured::kAttention))
    for (const std::int64_t sequences : {1, 8}) time_attention(d, small ? 64 : 8192, sequences);
  if (asked(measured::kCalibration) || asked(measured::kGram)) {
    if (d.cublas) time_large_product(d);
    time_calibration(d, calibration, small ? 64 : 1);
  }
  for (const KernelChoice& choice : calibration.kernel_choices())
    std::printf("# %s: %s%s%s\n", choice.what.c_str(), choice.kernel.c_str(), choice.why.empty() ? "" : ", ",
                choice.why.c_str());
  print_bars(d, small);
}

}  // namespace
}  // namespace llmq

int main(int count, char** words) {
  try {
    std::vector<std::string> names(words + std::min(count, 2), words + count);
    const bool small = !names.empty() && names.front() == "small";
    if (small) names.erase(names.begin());
    if (count < 2) {
      std::fprintf(stderr, "device_bench DEVICE [small] [OPERATION...]\n");
      return 2;
    }
    const std::shared_ptr<llmq::Backend> calibration =
        llmq::make_backend({words[1], 0, {}, llmq::DeviceUse::kCalibration});
    llmq::run(*llmq::make_backend({words[1]}), *calibration, small, names);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "device_bench: %s\n", error.what());
    return 2;
  }
}
