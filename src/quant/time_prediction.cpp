#include "quant/time_prediction.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"
#include "calibration/input_stats.h"
#include "quant/factorization.h"
#include "quant/gram_loss.h"
#include "quant/pipeline.h"
#include "quant/residual_store.h"
#include "quant/rtn.h"
#include "quant/upstream_error.h"

namespace llmq {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kSmall = 512, kLarge = 1024, kTokens = 256, kRows = 64;
constexpr double kBudget = 0.1;  // seconds for a figure
constexpr int kLeastRuns = 2;

// The shortest of as many runs as fit the budget: a neighbour only ever makes one slower.
double best_seconds(const std::function<void()>& work) {
  double best = std::numeric_limits<double>::infinity();
  const Clock::time_point start = Clock::now();
  for (int run = 0; run < kLeastRuns || Clock::now() - start < std::chrono::duration<double>(kBudget);
       ++run) {
    const Clock::time_point from = Clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - from).count());
  }
  return best;
}

std::vector<float> some_values(std::size_t count, std::uint32_t state) {
  std::vector<float> values(count);
  for (float& v : values)
    v = static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1;
  return values;
}

// t(x) = low x^p + high x^(p+1) through two measured points; neither is negative.
struct Growth {
  double low = 0, high = 0;
  int power = 1;
  double at(double x) const { return (low + high * x) * std::pow(x, power); }
};

Growth growth(double small, double large, int power) {
  const auto x = static_cast<double>(kSmall), y = static_cast<double>(kLarge);
  const double a = small / std::pow(x, power), b = large / std::pow(y, power);
  const double high = std::max((b - a) / (y - x), 0.0);
  return {std::max(b - high * y, 0.0), high, power};
}

// What one size of problem takes.
struct Sample {
  double input = 0, rounding = 0, judging = 0, handing = 0;
};

class Probe {
 public:
  Probe(const Plan& plan, Backend& backend) : plan_(plan), backend_(backend), pool_(backend.threads()) {}

  double linear_rate() {
    const Tensor x = tensor(kLarge), y = {backend_.allocate(kTokens * kLarge * 4), {}};
    const std::vector<float> w = some_values(kLarge * kLarge, 3);
    const auto prepared =
        backend_.prepare(TensorView(w.data(), DType::kF32, {kLarge, kLarge}), plan_.compute);
    const TensorView product = y.memory.view(DType::kF32, {kTokens, kLarge});
    return 2.0 * kTokens * kLarge * kLarge /
           best_seconds([&] { backend_.linear(product, x.view, *prepared, {}); });
  }

  double gram_rate() {
    const Tensor x = tensor(kLarge);
    const Buffer square = backend_.allocate(kLarge * kLarge * 4);
    const TensorView g = square.view(DType::kF32, {kLarge, kLarge});
    return 1.0 * kTokens * kLarge * kLarge / best_seconds([&] { backend_.gram(g, x.view); });
  }

  // Operations of the FP64 factor per second.
  double factor_rate() {
    const double seconds = best_seconds([&] {
      LowerTriangle matrix(kLarge);
      for (std::int64_t i = 0; i < kLarge; ++i) matrix.row(i)[i] = 1;
      cholesky_lower(matrix, pool_);
    });
    return 1.0 * kLarge * kLarge * kLarge / 3 / seconds;
  }

  Sample sample(std::int64_t columns) {
    InputStats stats(columns);
    stats.add(backend_, tensor(columns).view);
    const std::vector<float> weight = some_values(static_cast<std::size_t>(kRows * columns), 5);
    const PlannedModule& module = plan_.modules.front();
    QuantScheme scheme = module.scheme;
    if (scheme.group_size > columns) scheme.group_size = static_cast<int>(columns);
    GramLoss gram(stats, backend_, plan_.compute);
    const auto method = make_rounding(plan_);
    std::unique_ptr<PreparedInput> prepared;
    const RoundingProblem problem{weight, kRows, columns, &stats, scheme, &gram, &prepared};
    Sample found;
    const double first = best_seconds([&] {
      prepared.reset();
      method->quantize(problem, backend_);
    });
    found.rounding = best_seconds([&] { method->quantize(problem, backend_); });
    found.input = std::max(first - found.rounding, 0.0);
    found.rounding /= kRows;
    QuantizedMatrix matrix;
    found.judging = best_seconds([&] {
                      matrix = round_to_nearest(weight, kRows, columns, scheme, pool_);
                      row_losses(matrix, weight, gram, pool_);
                      output_energy(weight, kRows, columns, gram, pool_);
                    }) /
                    kRows;
    std::vector<float> value(matrix.codes.size());
    found.handing =
        best_seconds([&] {
          for (int use = 0; use < 2; ++use)
            dequantize(matrix, value);  // the report's error, and the device's
          backend_.prepare(TensorView(value.data(), DType::kF32, {kRows, columns}), plan_.compute);
        }) /
        kRows;
    return found;
  }

  // Of a linear without calibration: rounding and the error of the report.
  double plain_row() {
    const std::vector<float> weight = some_values(static_cast<std::size_t>(kRows * kLarge), 5);
    std::vector<float> value(weight.size());
    return best_seconds([&] {
             const QuantizedMatrix matrix =
                 round_to_nearest(weight, kRows, kLarge, plan_.modules.front().scheme, pool_);
             dequantize(matrix, value);
           }) /
           static_cast<double>(kRows * kLarge);
  }

 private:
  struct Tensor {
    Buffer memory;
    TensorView view;
  };
  Tensor tensor(std::int64_t columns) {
    const std::vector<float> values = some_values(static_cast<std::size_t>(kTokens * columns), 1);
    const Buffer wide = backend_.allocate(values.size() * 4);
    const TensorView full = wide.view(DType::kF32, {kTokens, columns});
    backend_.upload(full, values.data());
    const DType dtype = activation_dtype(plan_.compute);
    Tensor made{backend_.allocate(values.size() * static_cast<std::size_t>(element_bytes(dtype))), {}};
    made.view = made.memory.view(dtype, {kTokens, columns});
    backend_.convert(made.view, full);
    return made;
  }

  const Plan& plan_;
  Backend& backend_;
  ThreadPool pool_;
};

// Seconds for each byte of weights, from the disk or its cache to FP32.
double reading_seconds(const Plan& plan, const Checkpoint& checkpoint) {
  constexpr std::int64_t kMost = 1 << 22;
  const StoredTensor& tensor = checkpoint.at(plan.modules.back().module + ".weight");
  const std::int64_t rows = std::clamp<std::int64_t>(kMost / tensor.view.cols(), 1, tensor.view.rows());
  const std::uint64_t bytes =
      tensor.view.bytes() / static_cast<std::uint64_t>(tensor.view.rows()) * static_cast<std::uint64_t>(rows);
  std::vector<float> values(static_cast<std::size_t>(rows * tensor.view.cols()));
  const Clock::time_point start = Clock::now();
  to_float32(TensorView(tensor.view.pointer, tensor.view.dtype, {rows, tensor.view.cols()}), values);
  checkpoint.release(tensor);
  return std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(bytes);
}

double writing_seconds(Io& io, const Path& directory) {
  constexpr std::size_t kPiece = std::size_t{1} << 20, kPieces = 16;
  const std::vector<std::byte> piece(kPiece, std::byte{1});
  const auto file = open_nameless(io, directory, kPiece * kPieces);
  const Clock::time_point start = Clock::now();
  for (std::size_t i = 0; i < kPieces; ++i) file->write_at(i * kPiece, piece);
  file->sync();
  return std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(kPiece * kPieces);
}

double of(std::int64_t value) { return static_cast<double>(value); }

// What the plan's parts add up to.
struct Work {
  double linear = 0, gram = 0, factor = 0;                                // operations
  double inputs = 0, rounding = 0, judging = 0, handing = 0, search = 0;  // seconds
};

Work work_of(const Plan& plan, const ModelSpec& spec, const Sample& small, const Sample& large) {
  Work work;
  const Growth input = growth(small.input, large.input, 2),
               rounding = growth(small.rounding, large.rounding, 1),
               judging = growth(small.judging, large.judging, 1),
               handing = growth(small.handing, large.handing, 1);
  const double tokens = of(plan.calibration.samples) * of(plan.calibration.sequence_length),
               searched = std::min(tokens, 4096.0);
  const bool folds = plan.fold != FoldMethod::kNone,
             upstream = plan.rounding == RoundingMethod::kGptq && plan.gptq.upstream_share.value_or(0) > 0;
  const double original =
      upstream ? tokens / of(original_stride(plan.calibration.samples, plan.calibration.sequence_length,
                                             plan.chunk_tokens))
               : 0;
  const double candidates = plan.fold == FoldMethod::kAwq
                                ? of(plan.awq.grid) * (plan.awq.duo_scaling == AwqOptions::Duo::kBoth ? 2 : 1)
                                : 0;
  for (const BlockSpec& block : spec.blocks)
    for (const InputSite site : kInputSites) {
      double rows = 0, k = 0;
      const bool inner = site == InputSite::kOutput || site == InputSite::kDown;
      for (const LinearSpec& linear : block.linears) {
        if (linear.site != site) continue;
        rows += of(linear.out_features);
        k = of(linear.in_features);
        // Outer readers run for the inner input's statistics, for its search, and once more where it was not kept.
        const double passes = inner ? tokens : tokens * (plan.keep_inputs ? 1 : 2) + (folds ? searched : 0);
        work.linear += 2 * of(linear.out_features) * k * (passes + original + (inner ? original : 0));
        work.rounding += of(linear.out_features) * rounding.at(k);
        work.judging += of(linear.out_features) * judging.at(k);
        work.handing += of(linear.out_features) * handing.at(k);
      }
      work.gram += (tokens + (folds && inner ? searched : 0)) * k * k;
      work.inputs += input.at(k);
      work.search +=
          (candidates * std::min(rows, 256.0) + (candidates > 0 ? 5 * rows : 0)) * judging.at(k) / 2;
      if (upstream && inner) work.factor += k * k * k / 3 + 2 * rows * k * k;
    }
  return work;
}

}  // namespace

TimePrediction predict_time(const Plan& plan, const Checkpoint& checkpoint, const ModelSpec& spec,
                            Backend& backend, Io& io, const Path& directory) {
  const Clock::time_point start = Clock::now();
  TimePrediction prediction;
  const auto add = [&](const char* part, double seconds) {
    prediction.parts.emplace_back(part, seconds);
    prediction.seconds += seconds;
  };
  Probe probe(plan, backend);
  if (plan.needs_calibration) {
    const Work work = work_of(plan, spec, probe.sample(kSmall), probe.sample(kLarge));
    add("forward", work.linear / probe.linear_rate());
    add("statistics", work.gram / probe.gram_rate());
    add("scale search", work.search);
    if (work.factor > 0) add("upstream error", work.factor / probe.factor_rate());
    add("rounding", work.rounding + work.inputs);
    add("losses", work.judging + work.handing);
  } else {
    double weights = 0;
    for (const PlannedModule& module : plan.modules)
      weights += of(module.out_features) * of(module.in_features);
    add("rounding", weights * probe.plain_row());
  }
  add("reading", of(static_cast<std::int64_t>(plan.bytes_in)) * reading_seconds(plan, checkpoint));
  try {
    add("writing", of(static_cast<std::int64_t>(plan.bytes_out)) * writing_seconds(io, directory));
  } catch (
      const Error& error) {  // a dry run needs no place to write to; the run itself will say what is wrong
    if (error.kind() == ErrorKind::kInternal) throw;
  }
  return_freed_memory();
  prediction.probe_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return prediction;
}

Json TimePrediction::to_json() const {
  Json list = Json::object();
  for (const auto& [part, time] : parts) list[part] = Json(time);
  return Json::object(
      {{"seconds", Json(seconds)}, {"probe_seconds", Json(probe_seconds)}, {"seconds_by_part", list}});
}

}  // namespace llmq
