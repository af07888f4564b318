// Pieces of work for an instruction counter, one thread each.   counted_work NAME | names
//
// What counts happens inside counted_region(), which valgrind is told to look at; everything is prepared
// before and run once.
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/io.h"
#include "base/threads.h"
#include "model/open_checkpoint.h"
#include "quant/methods/gptq/factorization.h"
#include "runtime/serving_engine.h"

extern "C" __attribute__((noinline)) void counted_region(const std::function<void()>& work) { work(); }

namespace {

using namespace llmq;

Backend& backend() {
  static const std::shared_ptr<Backend> cpu = make_cpu_backend(1);
  return *cpu;
}

// Once, so that scratch memory has its size, then counted.
void count(const std::function<void()>& work) {
  work();
  counted_region(work);
}

struct Owned {
  Buffer storage;
  TensorView view;
};

Owned tensor(DType dtype, const Shape& shape) {
  Owned owned;
  owned.storage = backend().allocate(static_cast<std::size_t>(shape.elements() * element_bytes(dtype)));
  owned.view = owned.storage.view(dtype, shape);
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(i * 37 % 251) * 0.0078125f - 1.0f;
  backend().convert(owned.view, TensorView(values.data(), DType::kF32, shape));
  return owned;
}

void linear(std::int64_t rows) {
  const Owned weight = tensor(DType::kF32, {192, 576}), x = tensor(DType::kBF16, {rows, 576}),
              y = tensor(DType::kF32, {rows, 192});
  const auto prepared = backend().prepare(weight.view, Compute::kBFloat16);
  count([&] { backend().linear(y.view, x.view, *prepared, {}); });
}

void eight_bit_linear() {
  QuantizedMatrix matrix;
  matrix.scheme.bits = matrix.scheme.activation_bits = 8;
  matrix.scheme.activation_scale = ActivationScale::kToken;
  matrix.scheme.granularity = Granularity::kChannel;
  matrix.scheme.symmetric = true;
  matrix.out_features = 192;
  matrix.in_features = 576;
  for (std::int64_t i = 0; i < 192 * 576; ++i) matrix.codes.push_back(static_cast<std::uint8_t>(i * 7 % 256));
  matrix.scales.assign(192, 0.01f);
  matrix.zeros.assign(192, 128);
  const Owned x = tensor(DType::kBF16, {96, 576}), y = tensor(DType::kF32, {96, 192});
  const auto prepared = backend().prepare_quantized(matrix, Compute::kBFloat16);
  count([&] { backend().linear(y.view, x.view, *prepared, {}); });
}

void gram() {
  const Owned x = tensor(DType::kBF16, {256, 192}), g = tensor(DType::kF32, {192, 192});
  count([&] { backend().gram(g.view, x.view); });
}

// The last `rows` of 256 positions.
void attention(std::int64_t rows) {
  AttentionProblem problem;
  problem.heads = 6;
  problem.kv_heads = 2;
  problem.head_dim = 64;
  problem.scale = 0.125f;
  problem.compute = Compute::kBFloat16;
  const Owned keys = tensor(DType::kBF16, {16, 16, 2, 64}), values = tensor(DType::kBF16, {16, 16, 2, 64});
  const Owned q = tensor(DType::kF32, {rows, 6, 64}), out = tensor(DType::kBF16, {rows, 384});
  std::vector<std::int32_t> table(16);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i);
  const std::vector<SequenceRows> sequences = {{0, rows, 256 - rows, table}};
  count([&] { backend().attention(out.view, q.view, {keys.view, values.view, 16}, sequences, problem); });
}

void norm() {
  const Owned x = tensor(DType::kF32, {64, 576}), gain = tensor(DType::kF32, {576}),
              y = tensor(DType::kBF16, {64, 576});
  count([&] { backend().rms_norm(y.view, x.view, gain.view, 1e-5f); });
}

void cholesky() {
  constexpr std::int64_t kSize = 192;
  const auto cpu = make_cpu_backend(1);
  counted_region([&] {
    factorize(
        kSize, 0.01, 1,
        [](std::int64_t i, std::int64_t j) {
          return i == j ? 2.0 : 1.0 / (1.0 + std::abs(static_cast<double>(i - j)));
        },
        *cpu);
  });
}

void decode_step() {
  Engine::Options options;
  options.max_context = options.kv_tokens = 64;
  const std::string model = std::string(LLMQ_SOURCE_DIR) + "/tests/models/tinystories-656k";
  Engine engine = Engine::load(open_checkpoint(system_io(), model), make_cpu_backend(1), options);
  ServingOptions serving;
  serving.limits.max_model_len = 64;
  ServingEngine batch(engine, nullptr, serving);
  GenerationRequest request;
  request.prompt = {1, 2, 3, 4, 5, 6, 7, 8};
  request.ignore_eos = true;
  if (batch.submit(std::move(request))) return;
  batch.step();
  count([&] { batch.step(); });
}

const std::map<std::string, std::function<void()>> kWork = {
    {"linear_1_row", [] { linear(1); }},
    {"linear_96_rows", [] { linear(96); }},
    {"linear_int8_96_rows", eight_bit_linear},
    {"gram", gram},
    {"attention_prefill", [] { attention(64); }},
    {"attention_decode", [] { attention(1); }},
    {"norm", norm},
    {"cholesky", cholesky},
    {"decode_step", decode_step},
};

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc == 2 ? argv[1] : "";
  if (name == "names")
    for (const auto& work : kWork) std::puts(work.first.c_str());
  else if (const auto found = kWork.find(name); found != kWork.end())
    found->second();
  else
    return std::fputs("counted_work NAME | names\n", stderr), 2;
}
