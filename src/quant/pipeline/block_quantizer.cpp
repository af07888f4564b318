#include "quant/pipeline/block_quantizer.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "device/named_range.h"
#include "model/linear_source.h"
#include "quant/methods/awq/scale_search.h"
#include "quant/methods/gram_loss.h"
#include "quant/methods/rtn.h"
#include "quant/methods/smoothquant/smooth_loss.h"
#include "quant/pipeline/block_weights.h"
#include "quant/pipeline/fold.h"
#include "quant/pipeline/weight_checks.h"

namespace llmq {
namespace {

// What calibration saw of one input: statistics of all rows, and some rows themselves.
struct SeenInput {
  InputStats stats;
  RowSample rows;
  void divide_channels(std::span<const float> s) {
    stats.divide_channels(s);
    rows.divide_channels(s);
  }
};

// A seen input with its Gram matrix as the backend holds it: made once for all linears that read the input.
struct InputWithGram {
  InputWithGram(SeenInput of, const QuantizeRun& run)
      : seen(std::move(of)),
        stats(seen.stats),
        gram(stats, run.backend, run.plan.compute, run.options.further_devices) {}
  InputWithGram(const InputWithGram&) = delete;
  InputWithGram& operator=(const InputWithGram&) = delete;
  SeenInput seen;
  const InputStats& stats;
  GramLoss gram;
  std::unique_ptr<PreparedInput> prepared;  // by the rounding, at the first linear
};

constexpr std::array kAttentionRoles = {LinearRole::kQuery, LinearRole::kKey, LinearRole::kValue,
                                        LinearRole::kOutput};
constexpr std::array kMlpRoles = {LinearRole::kGate, LinearRole::kUp, LinearRole::kDown};

class StagedBlock {
 public:
  StagedBlock(QuantizeRun& run, int block, ActivationStream& stream)
      : run_(run), block_(block), stream_(stream), spec_(run.spec.blocks[static_cast<std::size_t>(block)]) {
    weights_ = load_on_devices(run, block, {});
    charge("reading");
  }

  void run() {
    half(InputSite::kAttention, {LinearRole::kQuery, LinearRole::kKey}, LinearRole::kValue,
         InputSite::kOutput, LinearRole::kOutput);
    stream_.finish_attention(block_, weights_);
    if (run_.plan.kv_cache) write_kv_scales();
    for (BlockWeights& weights : weights_)
      for (const LinearRole role : kAttentionRoles) weights.linear(role) = {};
    charge("forward");
    half(InputSite::kMlp, {LinearRole::kGate}, LinearRole::kUp, InputSite::kDown, LinearRole::kDown);
    stream_.finish_mlp(weights_);
    charge("forward");
  }

 private:
  void charge(const char* part) { run_.clock.charge(part); }

  void write_kv_scales() {
    const KvExtremes extremes = stream_.kv_extremes();
    for (const auto& [name, largest] :
         {std::pair{"k_scale", extremes.keys}, std::pair{"v_scale", extremes.values}}) {
      const bool float8 = run_.plan.kv_cache == KvCacheType::kFloat8;
      const float scale = input_scale(float8 ? WeightType::kFloat8 : WeightType::kInteger, largest);
      const auto bytes = std::as_bytes(std::span(&scale, 1));
      run_.writing.add_dense(kv_scale_name(block_, name), DType::kF32, {1}, {bytes.begin(), bytes.end()});
    }
  }

  // One half of the block: `first` and `producer` read the outer input, `last` reads what the producer feeds.
  void half(InputSite outer, const std::vector<LinearRole>& first, LinearRole producer, InputSite inner,
            LinearRole last) {
    works_.clear();
    for (const LinearRole role : first) load(role);
    load(producer);
    load_last(last);
    if (!works_.empty()) {
      InputWithGram judge(fold_outer(outer), run_);
      for (const LinearRole role : first) quantize(role, judge);
      if (can_fold(inner)) fold_inner(producer, inner, last);
      quantize(producer, judge);
    }
    advance_original(inner);
    if (works_.count(last) == 0 && !open(last)) return;
    InputWithGram judge(take_statistics(inner, Samples::kAll), run_);
    measure_rounding(judge, {last});
    if (run_.original != nullptr) take_back_upstream(inner, last, judge.stats);
    quantize(last, judge);
  }

  // The original model's samples pass this half of the block.
  void advance_original(InputSite site) {
    if (run_.original == nullptr) return;
    const NamedRange range(run_.backend, "original forward");
    OriginalStream& original = *run_.original;
    if (site == InputSite::kOutput) {
      original.weights = load_on_devices(run_, block_, kAttentionRoles);
      original.stream.finish_attention(block_, original.weights);
      original.weights.clear();
    } else {
      original.weights = load_on_devices(run_, block_, kMlpRoles);
      original.stream.finish_mlp(original.weights);
      original.weights.clear();
    }
    charge("original forward");
  }

  // `role` makes up for part of what the residual stream lost until here.
  void take_back_upstream(InputSite site, LinearRole role, const InputStats& stats) {
    OriginalStream& original = *run_.original;
    LinearWork& work = works_.at(role);
    put_on_device(work.weight, role);
    const std::vector<double> missing =
        stream_.missing_output(site, block_, weights_, role, original.stream, original.stride);
    work.change_rows(run_.pool(), [](std::size_t, std::span<const float> from, std::span<float> into) {
      if (from.data() != into.data()) std::copy(from.begin(), from.end(), into.begin());
    });
    take_back(work.weight, missing, original.stream.tokens(), stats, *run_.plan.gptq.upstream_share,
              run_.backend);
    charge("upstream error");
  }

  SeenInput fold_outer(InputSite site) {
    InputWithGram judge(take_statistics(site, Samples::kAll), run_);
    measure_rounding(judge, readers_of(site));
    const std::vector<float> s = fold(site, judge.seen, &judge.gram);
    if (!s.empty()) judge.seen.divide_channels(s);
    return std::move(judge.seen);
  }

  void fold_inner(LinearRole producer, InputSite inner, LinearRole last) {
    open(last);
    put_on_device(works_.at(producer).weight, producer);  // folded by the outer scale, not yet quantized
    const SeenInput seen = take_statistics(inner, Samples::kForSearch);
    if (searches_by_gram()) {
      GramLoss gram(seen.stats, run_.backend, run_.plan.compute, run_.options.further_devices);
      fold(inner, seen, &gram);
    } else {
      fold(inner, seen, nullptr);
    }
  }

  // A linear on the device, as its readers' inputs run through it before it is quantized: read once, also
  // where it is to be quantized.
  void load(LinearRole role) {
    const LinearSpec& linear = spec_.linear(role);
    if (open(role)) {
      put_on_device(works_.at(role).weight, role);
      load_biases(linear);
    } else {
      const Lease lease = hold_weight(run_, linear);
      on_each_device([&](Backend& backend, BlockWeights& weights) {
        weights.linear(role) =
            prepare_linear(backend, run_.plan.compute, run_.source, linear, run_.options.allow_nonfinite);
      });
    }
    charge("reading");
  }

  // Nothing runs through the last linear of a half before it is quantized.
  void load_last(LinearRole role) {
    if (is_planned(role))
      load_biases(spec_.linear(role));
    else
      load(role);
  }

  void load_biases(const LinearSpec& linear) {
    on_each_device([&](Backend& backend, BlockWeights& weights) {
      weights.linear(linear.role).bias =
          load_bias(backend, run_.source, linear, run_.options.allow_nonfinite);
    });
  }

  template <class Visit>
  void on_each_device(const Visit& visit) {
    const std::vector<Backend*> devices = run_.devices();
    for (std::size_t i = 0; i < devices.size(); ++i) visit(*devices[i], weights_[i]);
  }

  bool open(LinearRole role) {
    const LinearSpec& linear = spec_.linear(role);
    const auto planned = run_.planned.find(linear.module);
    if (planned == run_.planned.end()) return false;
    LinearWork work;
    work.spec = &linear;
    work.module = planned->second;
    work.weight = load_planned_weight(run_, linear);
    works_.insert_or_assign(role, std::move(work));
    charge("reading");
    return true;
  }

  SeenInput take_statistics(InputSite site, Samples samples) {
    const NamedRange range(run_.backend, fmt::format("{} statistics", site_name(site)));
    SeenInput seen{InputStats(1), {}};
    seen.stats =
        stream_.statistics(site, block_, weights_, samples, needs_rows() ? &seen.rows : nullptr,
                           samples == Samples::kAll || searches_by_gram() ? run_.plan.gram_tokens() : 0);
    for (const double value : seen.stats.mean_absolute())
      if (!std::isfinite(value))
        fail(ErrorKind::kBadInput,
             {fmt::format("the activations {} are not finite", site_name(site)),
              run_.source.checkpoint().path().string(), spec_.prefix,
              run_.plan.compute == Compute::kBFloat16 ? "try --compute float32"
                                                      : "the checkpoint's weights may be damaged"});
    charge(samples == Samples::kAll ? "forward and statistics" : "scale search");
    return seen;
  }

  bool searches_by_gram() const { return run_.plan.traits->searches_by_gram; }

  bool needs_rows() const {
    return std::any_of(works_.begin(), works_.end(),
                       [](const auto& work) {
                         return work.second.module->scheme.activation_scale != ActivationScale::kNone;
                       }) ||
           (run_.plan.traits->samples_rows && !run_.plan.smoothquant.alpha);
  }

  const FoldSpec* find_fold(InputSite site) const {
    for (const FoldSpec& fold : spec_.folds)
      if (fold.site == site) return &fold;
    return nullptr;
  }

  bool is_planned(LinearRole role) const { return run_.planned.count(spec_.linear(role).module) != 0; }

  bool can_fold(InputSite site) const {
    const FoldSpec* fold = run_.plan.traits->folds ? find_fold(site) : nullptr;
    if (fold == nullptr || fold->readers.empty()) return false;
    const bool linear = fold->producer != FoldSpec::Producer::kNormGain;
    return std::all_of(fold->readers.begin(), fold->readers.end(),
                       [&](LinearRole role) { return is_planned(role); }) &&
           (!linear || run_.planned.count(fold->producer_module) != 0);
  }

  // Plain rounding of the original weights on these statistics: what the report compares with. Statistics of
  // a folded input see both through the fold's scale.
  void measure_rounding(InputWithGram& judge, const std::vector<LinearRole>& roles) {
    const NamedRange range(run_.backend, "losses of plain rounding");
    for (const LinearRole role : roles) {
      LinearWork& work = works_.at(role);
      const LinearSpec& s = *work.spec;
      const QuantizedMatrix plain =
          round_to_nearest(work.original(), s.out_features, s.in_features, work.module->scheme, run_.pool());
      work.report.rtn_loss =
          sum_in_order(row_losses(plain, work.original(), judge.gram, run_.pool(), work.in_scale));
      energy_[role] = output_energy(work.weight, s.out_features, s.in_features, judge.gram, run_.pool());
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
  // `gram` of seen.stats: SmoothQuant looks for none.
  std::vector<float> fold(InputSite site, const SeenInput& seen, GramLoss* gram) {
    if (!can_fold(site)) return {};
    const NamedRange range(run_.backend, fmt::format("{} scale search", site_name(site)));
    const FoldSpec& spec = *find_fold(site);
    const Fold fold(run_, spec);
    ScaleProblem problem;
    for (const LinearRole role : spec.readers)
      problem.readers.push_back(
          {works_.at(role).original(), works_.at(role).spec->out_features, works_.at(role).module->scheme});
    problem.stats = &seen.stats;
    problem.rows = &seen.rows;
    problem.gram = gram;
    problem.compute = run_.plan.compute;
    problem.producer_of = fold.producer_rows(seen.stats.channels());
    std::vector<float> s =
        searches_by_gram() ? awq_scales(problem, fold, spec) : smooth_scales(problem, fold);
    charge("scale search");
    if (!s.empty()) fold.move(s, works_, weights_);
    return s;
  }

  std::vector<float> awq_scales(const ScaleProblem& problem, const Fold& fold, const FoldSpec& spec) {
    AwqScales found = search_awq_scales(problem, run_.plan.awq, run_.backend);
    if (found.identity) return {};
    if (spec.producer != FoldSpec::Producer::kNormGain) return std::move(found.s);
    found.s = fold.storable(std::move(found.s));
    if (awq_scale_loss(problem, found.s, run_.backend) < found.identity_loss) return std::move(found.s);
    for (const LinearRole role : spec.readers)
      run_.report.fallbacks.push_back(
          {works_.at(role).module->module,
           "the chosen scale loses more than plain rounding once the norm's gain is stored"});
    return {};
  }

  std::vector<float> smooth_scales(const ScaleProblem& problem, const Fold& fold) {
    SmoothScales found = search_smooth_scales(problem, run_.plan.smoothquant, run_.backend);
    if (found.identity) return {};
    return fold.storable(std::move(found.s));
  }

  void put_on_device(const QuantizedMatrix& matrix, LinearRole role) {
    if (matrix.scheme.activation_scale != ActivationScale::kNone) {
      on_each_device([&](Backend& backend, BlockWeights& weights) {
        weights.linear(role).weight = backend.prepare_quantized(matrix, run_.plan.compute);
      });
      return;
    }
    ZeroedNumbers<float> value(matrix.codes.size());
    dequantize(matrix, value, run_.pool());
    put_on_device(value, role);
  }

  void put_on_device(std::span<const float> weight, LinearRole role) {
    const LinearSpec& linear = spec_.linear(role);
    const TensorView view(weight.data(), DType::kF32, {linear.out_features, linear.in_features});
    on_each_device([&](Backend& backend, BlockWeights& weights) {
      weights.linear(role).weight = backend.prepare(view, run_.plan.compute);
    });
  }

  void quantize(LinearRole role, InputWithGram& judge) {
    const auto found = works_.find(role);
    if (found == works_.end()) return;
    LinearWork& work = found->second;
    const LinearSpec& s = *work.spec;
    const NamedRange range(run_.backend, s.module);
    QuantizedMatrix matrix = run_.rounding->quantize(
        {work.weight, s.out_features, s.in_features, &judge.stats, work.module->scheme, &judge.gram,
         &judge.prepared, run_.options.further_devices},
        run_.backend);
    if (readers_of(s.site).size() == 1) judge.prepared.reset();  // this was the input's last reader
    charge("rounding");
    check_scales(matrix, s.module, run_.source.checkpoint().path().string());
    fill_report(work, matrix, judge);
    keep_the_better(work, matrix, judge);
    set_input_scale(matrix, judge.seen, s.module);
    work.report.scales = scale_histogram(matrix.scales);
    work.report.input_error = input_error(work, judge.seen);
    charge("losses");
    put_on_device(matrix, role);
    charge("forward");
    run_.writing.add_quantized(s.module, std::move(matrix));
    charge("writing");
    run_.report.modules.push_back(work.report);
    if (run_.on_linear) run_.on_linear(*work.module, work.report);
    works_.erase(found);
  }

  // In the units of the original output.
  double loss_of(const LinearWork& work, const QuantizedMatrix& matrix, InputWithGram& judge) {
    if (work.out_scale.empty()) return matrix.loss;
    std::vector<double> loss = row_losses(matrix, work.weight, judge.gram, run_.pool());
    for (std::size_t r = 0; r < loss.size(); ++r)
      loss[r] *= static_cast<double>(work.out_scale[r]) * work.out_scale[r];
    return sum_in_order(loss);
  }

  void fill_report(LinearWork& work, const QuantizedMatrix& matrix, InputWithGram& judge) {
    ModuleReport& report = work.report;
    report.module = work.module->module;
    report.scheme = work.module->scheme;
    report.loss = loss_of(work, matrix, judge);
    const bool as_rounding =
        work.in_scale.empty() && !run_.plan.traits->factorizes && !(report.loss < report.rtn_loss);
    report.method = as_rounding ? "rtn" : run_.plan.method;
    report.lambda = matrix.notes.lambda;
    if (matrix.notes.lambda_raises > 0)
      run_.report.fallbacks.push_back(
          {report.module,
           fmt::format("its Gram matrix is not positive definite: lambda was raised {} times, to {:.3g}",
                       matrix.notes.lambda_raises, matrix.notes.lambda)});
    if (matrix.notes.dead_channels > 0)
      run_.report.warnings.push_back(fmt::format("{}: {} of {} channels were never active in calibration",
                                                 report.module, matrix.notes.dead_channels,
                                                 matrix.in_features));
    for (const std::string& warning : matrix.notes.warnings)
      run_.report.warnings.push_back(report.module + ": " + warning);
    measure(work, matrix);
  }

  void measure(LinearWork& work, const QuantizedMatrix& matrix) {
    const double energy = energy_[work.spec->role];
    work.report.relative_error = energy == 0 ? 0 : work.report.loss / energy;
    work.report.weight_error = weight_error(work, matrix, run_.pool());
  }

  // What loses more than plain rounding of the original weight gives way to plain rounding of this one, where
  // that loses less.
  void keep_the_better(LinearWork& work, QuantizedMatrix& matrix, InputWithGram& judge) {
    ModuleReport& report = work.report;
    if (!(report.loss > report.rtn_loss)) return;
    const LinearSpec& s = *work.spec;
    QuantizedMatrix plain =
        round_to_nearest(work.weight, s.out_features, s.in_features, work.module->scheme, run_.pool());
    plain.loss = sum_in_order(row_losses(plain, work.weight, judge.gram, run_.pool()));
    const double loss = loss_of(work, plain, judge);
    if (!(loss < report.loss)) return;
    run_.report.fallbacks.push_back(
        {report.module, fmt::format("{} loses {:.3e}, plain rounding {:.3e}: it is rounded plainly",
                                    report.method, report.loss, loss)});
    report.loss = loss;
    report.method = "rtn";
    matrix = std::move(plain);
    measure(work, matrix);
  }

  double input_error(const LinearWork& work, const SeenInput& seen) const {
    if (work.module->scheme.activation_scale == ActivationScale::kNone) return 0;
    ScaleProblem problem;
    problem.readers = {{work.weight, work.spec->out_features, work.module->scheme}};
    problem.stats = &seen.stats;
    problem.rows = &seen.rows;
    const std::vector<float> ones(static_cast<std::size_t>(work.spec->in_features), 1.0f);
    return SmoothLossFunction(problem, run_.pool()).input_loss(ones);
  }

  // The largest input that calibration saw, or the percentile asked for, is the largest code.
  void set_input_scale(QuantizedMatrix& matrix, const SeenInput& seen, const std::string& module) const {
    if (matrix.scheme.activation_scale != ActivationScale::kTensor) return;
    const std::span<const float> largest = seen.stats.absolute_max();
    const float top = run_.plan.activations.whole ? *std::max_element(largest.begin(), largest.end())
                                                  : seen.rows.magnitude_at(run_.plan.activations.percentile);
    matrix.input_scale = stored_scale(input_scale(matrix.scheme.weight_type, top), matrix.scheme.scale_dtype);
    if (!std::isfinite(matrix.input_scale))
      fail(ErrorKind::kUnsupported,
           {fmt::format("its inputs reach {:g}, which needs a scale beyond {}'s range", top,
                        dtype_row(matrix.scheme.scale_dtype).name),
            run_.source.checkpoint().path().string(), module,
            "round them per token, or give a BF16 checkpoint"});
  }

  QuantizeRun& run_;
  int block_;
  ActivationStream& stream_;
  const BlockSpec& spec_;
  std::vector<BlockWeights> weights_;  // on every device
  LinearWorks works_;
  std::map<LinearRole, double> energy_;  // tr(W G W^T)
};

}  // namespace

void quantize_block_on_samples(QuantizeRun& run, int block, ActivationStream& stream) {
  const NamedRange range(run.backend, fmt::format("block {}", block));
  StagedBlock(run, block, stream).run();
}

}  // namespace llmq
