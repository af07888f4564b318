#include "quant/block_quantizer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/half.h"
#include "quant/awq.h"
#include "quant/gram_loss.h"
#include "quant/rtn.h"

namespace llmq {
namespace {

// A planned linear on its way: W, then W diag(in_scale) / diag(out_scale).
struct Work {
  const LinearSpec* spec = nullptr;
  const PlannedModule* module = nullptr;
  std::vector<float> original, weight;
  std::vector<float> in_scale, out_scale;  // empty: all 1
  ModuleReport report;
};

// Statistics with their Gram matrix as the backend holds it: made once for all linears that read the input.
struct Judge {
  Judge(InputStats of, Backend& backend, Compute compute)
      : stats(std::move(of)), gram(stats, backend, compute) {}
  InputStats stats;
  GramLoss gram;
};

// ||D||_F / ||W||_F with D = dequantized * out_scale / in_scale - W.
double weight_error(const Work& work, const QuantizedMatrix& matrix, ThreadPool& pool) {
  std::vector<float> value(matrix.codes.size());
  dequantize(matrix, value);
  const auto columns = static_cast<std::size_t>(matrix.in_features);
  std::vector<double> difference(static_cast<std::size_t>(matrix.out_features)), norm(difference.size());
  pool.parallel_for(difference.size(), [&](std::size_t row, int) {
    const float out = work.out_scale.empty() ? 1.0f : work.out_scale[row];
    for (std::size_t k = 0; k < columns; ++k) {
      const float w = work.original[row * columns + k];
      const float in = work.in_scale.empty() ? 1.0f : work.in_scale[k];
      const double d = static_cast<double>(value[row * columns + k] * out / in - w);
      difference[row] += d * d;
      norm[row] += static_cast<double>(w) * w;
    }
  });
  const double whole = sum_in_order(norm);
  return whole == 0 ? 0 : std::sqrt(sum_in_order(difference) / whole);
}

void check_scales(const QuantizedMatrix& matrix, const std::string& module, const std::string& file) {
  for (const float scale : matrix.scales)
    if (!std::isfinite(scale))
      fail(ErrorKind::kUnsupported, {fmt::format("its weights need a scale beyond {}'s range",
                                                 dtype_row(matrix.scheme.scale_dtype).name),
                                     file, module, "write format: compressed-tensors, or a BF16 checkpoint"});
}

float rounded_to(float value, DType dtype) {
  if (dtype == DType::kBF16) return to_float(to_bfloat16(value));
  if (dtype == DType::kF16) return to_float(to_float16(value));
  return value;
}

class AwqBlock {
 public:
  AwqBlock(QuantizeRun& run, int block, ActivationStream& stream, const ForwardContext& context)
      : run_(run),
        block_(block),
        stream_(stream),
        context_(context),
        spec_(run.spec.blocks[static_cast<std::size_t>(block)]) {
    weights_ =
        load_block(run.backend, context.compute, run.source, run.spec, block, run.options.allow_nonfinite);
    charge("reading");
  }

  void run() {
    half(InputSite::kAttention, {LinearRole::kQuery, LinearRole::kKey}, LinearRole::kValue,
         InputSite::kOutput, LinearRole::kOutput);
    stream_.finish_attention(block_, weights_);
    charge("forward");
    half(InputSite::kMlp, {LinearRole::kGate}, LinearRole::kUp, InputSite::kDown, LinearRole::kDown);
    stream_.finish_mlp(weights_);
    charge("forward");
  }

 private:
  void charge(const char* part) { run_.clock.charge(part); }

  // One half of the block: `first` and `producer` read the outer input, `last` reads what the producer feeds.
  void half(InputSite outer, const std::vector<LinearRole>& first, LinearRole producer, InputSite inner,
            LinearRole last) {
    works_.clear();
    for (const LinearRole role : first) open(role);
    open(producer);
    if (!works_.empty()) {
      Judge judge = fold_outer(outer);
      for (const LinearRole role : first) quantize(role, judge);
      if (can_fold(inner)) fold_inner(producer, inner, last);
      quantize(producer, judge);
    }
    if (works_.count(last) == 0 && !open(last)) return;
    Judge judge(take_statistics(inner, Samples::kAll), run_.backend, context_.compute);
    measure_rounding(judge, {last});
    quantize(last, judge);
  }

  Judge fold_outer(InputSite site) {
    InputStats stats = take_statistics(site, Samples::kAll);
    std::vector<float> s;
    {
      Judge judge(stats, run_.backend, context_.compute);
      measure_rounding(judge, readers_of(site));
      s = fold(site, judge);
    }
    if (!s.empty()) stats.divide_channels(s);
    return Judge(std::move(stats), run_.backend, context_.compute);
  }

  void fold_inner(LinearRole producer, InputSite inner, LinearRole last) {
    open(last);
    put_on_device(works_.at(producer).weight, producer);  // folded by the outer scale, not yet quantized
    Judge judge(take_statistics(inner, Samples::kForSearch), run_.backend, context_.compute);
    fold(inner, judge);
  }

  bool open(LinearRole role) {
    const LinearSpec& linear = spec_.linear(role);
    const auto planned = run_.planned.find(linear.module);
    if (planned == run_.planned.end()) return false;
    Work work;
    work.spec = &linear;
    work.module = planned->second;
    work.original = load_planned_weight(run_, linear);
    work.weight = work.original;
    works_.insert_or_assign(role, std::move(work));
    charge("reading");
    return true;
  }

  InputStats take_statistics(InputSite site, Samples samples) {
    InputStats stats = stream_.statistics(site, block_, weights_, samples);
    for (const double value : stats.mean_absolute())
      if (!std::isfinite(value))
        fail(ErrorKind::kBadInput,
             {fmt::format("the activations {} are not finite", site_name(site)),
              run_.source.checkpoint().path().string(), spec_.prefix,
              context_.compute == Compute::kBFloat16 ? "try --compute float32"
                                                     : "the checkpoint's weights may be damaged"});
    charge("forward and statistics");
    return stats;
  }

  const FoldSpec* find_fold(InputSite site) const {
    for (const FoldSpec& fold : spec_.folds)
      if (fold.site == site) return &fold;
    return nullptr;
  }

  bool is_planned(LinearRole role) const { return run_.planned.count(spec_.linear(role).module) != 0; }

  bool can_fold(InputSite site) const {
    const FoldSpec* fold = find_fold(site);
    if (fold == nullptr || fold->readers.empty()) return false;
    const bool linear = fold->producer != FoldSpec::Producer::kNormGain;
    return std::all_of(fold->readers.begin(), fold->readers.end(),
                       [&](LinearRole role) { return is_planned(role); }) &&
           (!linear || run_.planned.count(fold->producer_module) != 0);
  }

  // Plain rounding of the original weights on these statistics: what the report compares with. Statistics of
  // a folded input see both through the fold's scale.
  void measure_rounding(Judge& judge, const std::vector<LinearRole>& roles) {
    for (const LinearRole role : roles) {
      Work& work = works_.at(role);
      const LinearSpec& s = *work.spec;
      const QuantizedMatrix plain =
          round_to_nearest(work.original, s.out_features, s.in_features, work.module->scheme, run_.pool);
      work.report.rtn_loss =
          sum_in_order(row_losses(plain, work.original, judge.gram, run_.pool, work.in_scale));
      energy_[role] = output_energy(work.weight, s.out_features, s.in_features, judge.gram, run_.pool);
    }
    charge("losses");
  }

  std::vector<LinearRole> readers_of(InputSite site) const {
    std::vector<LinearRole> roles;
    for (const LinearSpec& linear : spec_.linears)
      if (linear.site == site && works_.count(linear.role) != 0) roles.push_back(linear.role);
    return roles;
  }

  // Chooses s for the readers of `site` and moves it from the producer into them; empty: nothing moved.
  std::vector<float> fold(InputSite site, Judge& judge) {
    if (!can_fold(site)) return {};
    const FoldSpec& fold = *find_fold(site);
    AwqScaleProblem problem;
    for (const LinearRole role : fold.readers)
      problem.readers.push_back(
          {works_.at(role).original, works_.at(role).spec->out_features, works_.at(role).module->scheme});
    problem.stats = &judge.stats;
    problem.gram = &judge.gram;
    problem.options = run_.plan.awq;
    problem.compute = context_.compute;
    if (fold.producer == FoldSpec::Producer::kGroupedValueRows)
      problem.producer_of = value_rows(judge.stats.channels(), fold.repeat);
    AwqScales found = search_awq_scales(problem, run_.backend);
    bool better = !found.identity;
    if (better && fold.producer == FoldSpec::Producer::kNormGain) {
      found.s = storable_gain_scales(fold, std::move(found.s));
      better = awq_scale_loss(problem, found.s, run_.backend) < found.identity_loss;
    }
    charge("scale search");
    if (better) {
      move_scales(fold, found.s, problem.producer_of);
      return std::move(found.s);
    }
    if (!found.identity)
      for (const LinearRole role : fold.readers)
        run_.report.fallbacks.push_back(
            {works_.at(role).module->module,
             "the chosen scale loses more than plain rounding once the norm's gain is stored"});
    return {};
  }

  // Channel c of x_o is head c / head_dim; its value row belongs to that head's KV head.
  std::vector<std::int32_t> value_rows(std::int64_t channels, std::int64_t repeat) const {
    const std::int64_t head_dim = run_.spec.head_dim;
    std::vector<std::int32_t> rows;
    for (std::int64_t c = 0; c < channels; ++c)
      rows.push_back(static_cast<std::int32_t>(c / head_dim / repeat * head_dim + c % head_dim));
    return rows;
  }

  // The gain is stored rounded; what the readers must be scaled by is the ratio of the old gain to the stored
  // new one.
  std::vector<float> storable_gain_scales(const FoldSpec& fold, std::vector<float> s) {
    const StoredTensor& stored = run_.source.checkpoint().at(fold.producer_module + ".weight");
    const std::vector<float> gain = run_.source.tensor(stored.name, run_.options.allow_nonfinite);
    for (std::size_t c = 0; c < s.size(); ++c) {
      const float fresh = rounded_to(gain[c] / s[c], written_dtype(stored));
      s[c] = gain[c] / fresh;
      if (!std::isfinite(s[c]) || s[c] <= 0) s[c] = 1.0f;
    }
    return s;
  }

  void move_scales(const FoldSpec& fold, const std::vector<float>& s,
                   const std::vector<std::int32_t>& producer_of) {
    for (const LinearRole role : fold.readers) {
      Work& work = works_.at(role);
      work.in_scale = s;
      run_.pool.parallel_for(static_cast<std::size_t>(work.spec->out_features), [&](std::size_t row, int) {
        for (std::size_t c = 0; c < s.size(); ++c) work.weight[row * s.size() + c] *= s[c];
      });
    }
    if (fold.producer == FoldSpec::Producer::kNormGain) {
      divide_gain(fold, s);
      return;
    }
    const LinearRole role =
        fold.producer == FoldSpec::Producer::kGroupedValueRows ? LinearRole::kValue : LinearRole::kUp;
    Work& work = works_.at(role);
    work.out_scale.assign(static_cast<std::size_t>(work.spec->out_features), 1.0f);
    for (std::size_t c = 0; c < s.size(); ++c)
      work.out_scale[producer_of.empty() ? c : static_cast<std::size_t>(producer_of[c])] = s[c];
    const auto columns = static_cast<std::size_t>(work.spec->in_features);
    run_.pool.parallel_for(work.out_scale.size(), [&](std::size_t row, int) {
      for (std::size_t c = 0; c < columns; ++c) work.weight[row * columns + c] /= work.out_scale[row];
    });
    divide_bias(work);
  }

  void divide_gain(const FoldSpec& fold, const std::vector<float>& s) {
    const StoredTensor& stored = run_.source.checkpoint().at(fold.producer_module + ".weight");
    std::vector<float> gain = run_.source.tensor(stored.name, run_.options.allow_nonfinite);
    for (std::size_t c = 0; c < s.size(); ++c) gain[c] = rounded_to(gain[c] / s[c], written_dtype(stored));
    Buffer& buffer = fold.site == InputSite::kAttention ? weights_.input_norm : weights_.post_attention_norm;
    run_.backend.upload(buffer.view(DType::kF32, {static_cast<std::int64_t>(gain.size())}), gain.data());
    run_.changed_dense[stored.name] = std::move(gain);
  }

  void divide_bias(const Work& work) {
    std::optional<std::vector<float>> bias = run_.source.bias(*work.spec, run_.options.allow_nonfinite);
    if (!bias) return;
    const StoredTensor& stored = run_.source.checkpoint().at(work.spec->module + ".bias");
    for (std::size_t r = 0; r < bias->size(); ++r)
      (*bias)[r] = rounded_to((*bias)[r] / work.out_scale[r], written_dtype(stored));
    const Buffer& buffer = weights_.linear(work.spec->role).bias;
    run_.backend.upload(buffer.view(DType::kF32, {work.spec->out_features}), bias->data());
    run_.changed_dense[stored.name] = std::move(*bias);
  }

  void put_on_device(const std::vector<float>& weight, LinearRole role) {
    const LinearSpec& linear = spec_.linear(role);
    weights_.linear(role).weight = run_.backend.prepare(
        TensorView(weight.data(), DType::kF32, {linear.out_features, linear.in_features}), context_.compute);
  }

  void quantize(LinearRole role, Judge& judge) {
    const auto found = works_.find(role);
    if (found == works_.end()) return;
    Work& work = found->second;
    const LinearSpec& s = *work.spec;
    const RoundingProblem problem{work.weight,  s.out_features,      s.in_features,
                                  &judge.stats, work.module->scheme, &judge.gram};
    const QuantizedMatrix matrix =
        make_awq_rounding(run_.plan.awq, context_.compute)->quantize(problem, run_.backend);
    charge("clip search and rounding");
    check_scales(matrix, s.module, run_.source.checkpoint().path().string());
    fill_report(work, matrix, judge);
    charge("losses");
    {
      std::vector<float> value(matrix.codes.size());
      dequantize(matrix, value);
      put_on_device(value, role);
    }
    charge("forward");
    run_.writer.add_quantized(s.module, matrix);
    charge("writing");
    run_.report.modules.push_back(work.report);
    if (run_.on_linear) run_.on_linear(*work.module, work.report);
    works_.erase(found);
  }

  void fill_report(Work& work, const QuantizedMatrix& matrix, Judge& judge) {
    ModuleReport& report = work.report;
    report.module = work.module->module;
    report.scheme = work.module->scheme;
    report.method = work.in_scale.empty() && !(matrix.loss < report.rtn_loss) ? "rtn" : "awq";
    report.loss = matrix.loss;
    if (!work.out_scale.empty()) {  // in the units of the original output
      std::vector<double> loss = row_losses(matrix, work.weight, judge.gram, run_.pool);
      for (std::size_t r = 0; r < loss.size(); ++r)
        loss[r] *= static_cast<double>(work.out_scale[r]) * work.out_scale[r];
      report.loss = sum_in_order(loss);
    }
    const double energy = energy_[work.spec->role];
    report.relative_error = energy == 0 ? 0 : report.loss / energy;
    report.weight_error = weight_error(work, matrix, run_.pool);
  }

  QuantizeRun& run_;
  int block_;
  ActivationStream& stream_;
  const ForwardContext& context_;
  const BlockSpec& spec_;
  BlockWeights weights_;
  std::map<LinearRole, Work> works_;
  std::map<LinearRole, double> energy_;  // tr(W G W^T)
};

}  // namespace

double PartClock::now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void PartClock::charge(const std::string& part) {
  const double time = now();
  auto entry = std::find_if(seconds_.begin(), seconds_.end(), [&](const auto& e) { return e.first == part; });
  if (entry == seconds_.end()) entry = seconds_.insert(seconds_.end(), {part, 0.0});
  entry->second += time - last_;
  last_ = time;
}

std::vector<float> load_planned_weight(QuantizeRun& run, const LinearSpec& linear) {
  std::vector<float> weight = run.source.weight(linear, run.options.allow_nonfinite);
  if (const StoredTensor* tensor = run.source.checkpoint().find(linear.module + ".weight"))
    run.source.checkpoint().release(*tensor);
  if (!run.options.allow_nonfinite) return weight;
  float largest = 0;
  std::size_t replaced = 0;
  for (const float w : weight)
    if (std::isfinite(w)) largest = std::max(largest, std::fabs(w));
  for (float& w : weight) {
    if (std::isfinite(w)) continue;
    w = std::isnan(w) ? 0.0f : std::copysign(largest, w);
    ++replaced;
  }
  if (replaced != 0)
    run.report.warnings.push_back(
        fmt::format("{}.weight: {} values that are not finite were replaced (NaN by 0, infinity by {:g})",
                    linear.module, replaced, largest));
  return weight;
}

void quantize_block_by_awq(QuantizeRun& run, int block, ActivationStream& stream,
                           const ForwardContext& context) {
  AwqBlock(run, block, stream, context).run();
}

void quantize_block_by_rounding(QuantizeRun& run, int block) {
  for (const LinearSpec& linear : run.spec.blocks[static_cast<std::size_t>(block)].linears) {
    const auto planned = run.planned.find(linear.module);
    if (planned == run.planned.end()) continue;
    Work work;
    work.original = load_planned_weight(run, linear);
    run.clock.charge("reading");
    const QuantizedMatrix matrix = round_to_nearest(work.original, linear.out_features, linear.in_features,
                                                    planned->second->scheme, run.pool);
    check_scales(matrix, linear.module, run.source.checkpoint().path().string());
    work.report.module = linear.module;
    work.report.scheme = planned->second->scheme;
    work.report.method = "rtn";
    work.report.weight_error = weight_error(work, matrix, run.pool);
    work.report.relative_error = work.report.weight_error * work.report.weight_error;
    run.clock.charge("rounding");
    run.writer.add_quantized(linear.module, matrix);
    run.clock.charge("writing");
    run.report.modules.push_back(work.report);
    if (run.on_linear) run.on_linear(*planned->second, work.report);
  }
}

}  // namespace llmq
