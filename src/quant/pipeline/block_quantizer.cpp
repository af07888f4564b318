#include "quant/pipeline/block_quantizer.h"

#include <algorithm>
#include <map>
#include <memory>

#include "base/error.h"
#include "device/named_range.h"
#include "quant/pipeline/block_state.h"
#include "quant/pipeline/block_weights.h"
#include "quant/pipeline/experts/mixture_quantizer.h"
#include "quant/pipeline/linear_judgement.h"
#include "quant/pipeline/scale_folding.h"
#include "quant/pipeline/weight_checks.h"
#include "ranks/agreement.h"

namespace llmq {
namespace {

class StagedBlock {
 public:
  StagedBlock(QuantizeRun& run, int block, ActivationStream& stream)
      : run_(run), stream_(stream), block_(run, block), folding_(block_), judgement_(block_) {
    charge("reading");
  }

  void run() {
    for (std::size_t part = 0; part < block_.spec.sublayers.size(); ++part) {
      const SublayerSpec& sublayer = block_.spec.sublayers[part];
      if (const auto* const mixture = std::get_if<MixtureSpec>(&sublayer.mixer)) {
        pass_mixture(*mixture, part, sublayer);
      } else {
        load(sublayer);
        for (const SiteId site : sublayer.sites) pass(site, part, sublayer);
      }
      stream_.finish(part, block_.number, block_.weights);
      if (run_.plan.kv_cache && block_.spec.writes_pages(part) && block_.spec.pages.kv_heads > 0)
        write_kv_scales();
      release(part);
      charge("forward");
    }
  }

 private:
  void charge(const char* part) { run_.clock.charge(part); }

  // A sublayer that joins the next one runs there, and is released with it.
  void release(std::size_t part) {
    const std::vector<SublayerSpec>& all = block_.spec.sublayers;
    if (all[part].joins_next) return;
    block_.release(all[part]);
    if (all[part].joined) block_.release(all[part - 1]);
  }

  void load(const SublayerSpec& sublayer) {
    block_.works.clear();
    for (const LinearId id : linears_of(block_.spec, sublayer))
      if (sublayer.is_output(id))
        block_.load_output(id);
      else
        block_.load(id);
  }

  // No planned linear of an expert runs before it is quantized.
  void pass_mixture(const MixtureSpec& mixture, std::size_t part, const SublayerSpec& sublayer) {
    block_.works.clear();
    for (const LinearId id : linears_of(block_.spec, sublayer)) block_.load_output(id);
    advance_original(part);
    MixtureQuantizer(block_, stream_, folding_, judgement_, mixture,
                     [this](LinearId id, InputWithGram& input) { quantize(id, input); })
        .run();
  }

  // What is left to do before the inputs of `site` are final, and then the linears that read them.
  void pass(SiteId site, std::size_t part, const SublayerSpec& sublayer) {
    if (const auto* made = std::get_if<LinearRows>(&block_.spec.at(site).producer))
      if (const auto waits = waiting_.extract(made->rows.linear); !waits.empty()) {
        if (folding_.can_fold(site)) fold_behind(made->rows.linear, site);
        quantize(waits.key(), *waits.mapped());
      }
    if (site == sublayer.sites.back()) advance_original(part);
    const std::optional<LinearId> output = output_behind(site, sublayer);
    if (output && block_.works.count(*output) == 0) block_.open(*output);
    if (block_.at_work(site).empty()) return;
    const auto input =
        std::make_shared<InputWithGram>(output ? take_statistics(site, Samples::kAll) : folded(site), run_);
    if (output) judgement_.measure_rounding(*input, block_.at_work(site));
    if (output && takes_upstream(sublayer)) correct_upstream(part, *output, input->stats);
    for (const LinearId reader : block_.at_work(site))
      if (makes_input(sublayer, reader))
        waiting_.emplace(reader, input);
      else
        quantize(reader, *input);
  }

  // The linear that reads `site` and gives what is added; none reads the first.
  std::optional<LinearId> output_behind(SiteId site, const SublayerSpec& sublayer) const {
    for (const LinearId reader : block_.spec.at(site).readers)
      if (sublayer.is_output(reader)) return reader;
    return std::nullopt;
  }

  // A linear whose rows make the input of another site waits for the scale that moves into them from there.
  bool makes_input(const SublayerSpec& sublayer, LinearId id) const {
    for (const SiteId site : sublayer.sites)
      if (const auto* rows = std::get_if<LinearRows>(&block_.spec.at(site).producer))
        if (rows->rows.linear == id) return true;
    return false;
  }

  // Some of the samples run with `producer` as it is, so that a scale of the site behind it can be chosen.
  void fold_behind(LinearId producer, SiteId site) {
    for (const LinearId reader : block_.spec.at(site).readers) block_.open(reader);
    block_.put_on_devices(block_.works.at(producer).weight, producer);  // folded, not yet quantized
    const SeenInput seen = take_statistics(site, Samples::kForSearch);
    if (folding_.searches_by_gram()) {
      GramLoss gram(seen.stats, run_.backend, run_.plan.compute, run_.options.further_devices, run_.ranks());
      folding_.fold(site, seen, &gram);
    } else {
      folding_.fold(site, seen, nullptr);
    }
  }

  // The input of the first site, whose scale a norm gives up.
  SeenInput folded(SiteId site) {
    InputWithGram input(take_statistics(site, Samples::kAll), run_);
    judgement_.measure_rounding(input, block_.at_work(site));
    const std::vector<float> s = folding_.fold(site, input.seen, &input.gram);
    if (!s.empty()) input.seen.divide_channels(s);
    return std::move(input.seen);
  }

  // The original model's samples pass this sublayer.
  void advance_original(std::size_t part) {
    const SublayerSpec& sublayer = block_.spec.sublayers[part];
    if (run_.original == nullptr || sublayer.joins_next) return;
    const NamedRange range(run_.backend, "original forward");
    OriginalStream& original = *run_.original;
    std::vector<LinearId> linears = linears_of(block_.spec, sublayer);
    if (sublayer.joined)
      for (const LinearId id : linears_of(block_.spec, block_.spec.sublayers[part - 1]))
        linears.push_back(id);
    original.weights = load_on_devices(run_, block_.number, linears);
    original.stream.finish(part, block_.number, original.weights);
    original.weights.clear();
    charge("original forward");
  }

  // Whether the residual stream grows by just what the one output linear gives.
  bool takes_upstream(const SublayerSpec& sublayer) const {
    return run_.original != nullptr && !sublayer.shares_what_is_added();
  }

  // The output linear makes up for part of what the residual stream lost until here.
  void correct_upstream(std::size_t part, LinearId output, const InputStats& stats) {
    OriginalStream& original = *run_.original;
    LinearWork& work = block_.works.at(output);
    block_.put_on_devices(work.weight, output);
    const ZeroedNumbers<double> missing =
        stream_.output_error_products(part, block_.number, block_.weights, original.stream, original.stride);
    work.change_rows(run_.pool(), [](std::size_t, std::span<const float> from, std::span<float> into) {
      if (from.data() != into.data()) std::copy(from.begin(), from.end(), into.begin());
    });
    apply_upstream_correction(work.weight, missing, original.stream.tokens(), stats,
                              *run_.plan.gptq.upstream_share, run_.backend);
    charge("upstream error");
  }

  SeenInput take_statistics(SiteId id, Samples samples) {
    const SiteSpec& site = block_.spec.at(id);
    const NamedRange range(run_.backend, fmt::format("{} statistics", site.name));
    SeenInput seen{InputStats(1), {}};
    seen.stats = stream_.statistics(
        id, block_.number, block_.weights, samples, needs_rows() ? &seen.rows : nullptr,
        samples == Samples::kAll || folding_.searches_by_gram() ? run_.plan.gram_tokens() : 0);
    find_together(run_.ranks(), [&] {
      check_finite(seen.stats, block_.spec, id, run_.source.checkpoint().path(), run_.plan.compute);
    });
    charge(samples == Samples::kAll ? "forward and statistics" : "scale search");
    return seen;
  }

  bool needs_rows() const {
    return std::any_of(block_.works.begin(), block_.works.end(),
                       [](const auto& work) {
                         return work.second.module->scheme.activation_scale != ActivationScale::kNone;
                       }) ||
           (run_.plan.traits->samples_rows && !run_.plan.smoothquant.alpha);
  }

  void quantize(LinearId id, InputWithGram& input) {
    LinearWork& work = block_.works.at(id);
    const LinearSpec& s = *work.spec;
    const NamedRange range(run_.backend, s.module);
    QuantizedMatrix matrix =
        run_.rounding_of(work.module->scheme)
            .quantize(
                {work.weight, s.out_features, s.in_features, &input.stats, work.module->scheme, &input.gram,
                 &input.prepared, run_.options.further_devices, &run_.ranks(), block_.global_scale(id)},
                run_.backend);
    if (block_.at_work(s.site).size() == 1) input.prepared.reset();  // this was the input's last reader
    charge("rounding");
    judgement_.judge(work, matrix, input);
    find_together(run_.ranks(), [&] {
      judgement_.set_input_scale(matrix, input.seen, s.module);
      check_scales(matrix, s.module, run_.source.checkpoint().path().string());
    });
    work.report.scales = scale_histogram(matrix.scales);
    work.report.input_error = judgement_.input_error(work, input.seen);
    charge("losses");
    block_.put_on_devices(matrix, id);
    charge("forward");
    run_.writing.add_quantized(s.module, std::move(matrix));
    charge("writing");
    run_.report.modules.push_back(work.report);
    if (run_.on_linear) run_.on_linear(*work.module, work.report);
    block_.works.erase(id);
  }

  void write_kv_scales() {
    const KvExtremes extremes = stream_.kv_extremes();
    for (const auto& [name, largest] :
         {std::pair{"k_scale", extremes.keys}, std::pair{"v_scale", extremes.values}}) {
      const bool float8 = run_.plan.kv_cache == KvCacheType::kFloat8;
      const float scale = input_scale(float8 ? WeightType::kFloat8 : WeightType::kInteger, largest);
      const std::string tensor = kv_scale_name(block_.spec, name);
      find_together(run_.ranks(), [&, number = scale] {
        check_scale(number, "the scale of its pages", tensor, run_.source.checkpoint().path().string());
      });
      if (!run_.writing.writer().writes(tensor)) continue;
      const auto bytes = std::as_bytes(std::span(&scale, 1));
      run_.writing.add_dense(tensor, DType::kF32, {1}, {bytes.begin(), bytes.end()});
    }
  }

  QuantizeRun& run_;
  ActivationStream& stream_;
  BlockState block_;
  ScaleFolding folding_;
  LinearJudgement judgement_;
  std::map<LinearId, std::shared_ptr<InputWithGram>> waiting_;  // with the inputs that they read
};

}  // namespace

void quantize_block_on_samples(QuantizeRun& run, int block, ActivationStream& stream) {
  const NamedRange range(run.backend, fmt::format("block {}", block));
  StagedBlock(run, block, stream).run();
}

}  // namespace llmq
