#include "quant/pipeline/experts/mixture_quantizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "device/named_range.h"
#include "ranks/agreement.h"

namespace llmq {
namespace {

std::vector<LinearId> readers_of(const ExpertSpec& expert, ExpertInput input) {
  if (input == ExpertInput::kOfOutput) return {expert.output};
  return {expert.gate.linear, expert.up.linear};
}

// The first of them.
std::int64_t place_of_greatest(const std::vector<double>& values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

}  // namespace

MixtureQuantizer::MixtureQuantizer(BlockState& block, ActivationStream& stream, ScaleFolding& folding,
                                   LinearJudgement& judgement, const MixtureSpec& mixture, Quantize quantize)
    : block_(block),
      stream_(stream),
      folding_(folding),
      judgement_(judgement),
      mixture_(mixture),
      quantize_(std::move(quantize)) {}

void MixtureQuantizer::run() {
  const std::size_t first_module = block_.run.report.modules.size();
  if (!any_planned(ExpertInput::kOfGateAndUp) && !any_planned(ExpertInput::kOfOutput)) return;
  const NamedRange range(block_.run.backend, "experts");
  counts_ = stream_.routed_rows(block_.number, block_.weights, &squares_);
  for (const ExpertInput input : {ExpertInput::kOfGateAndUp, ExpertInput::kOfOutput}) {
    if (!any_planned(input)) continue;
    if (input == ExpertInput::kOfGateAndUp) {
      see_layer();
      fold_input();
      fold_outputs();
    }
    pass_experts(input);
    pass_shared(input);
    all_ = {InputStats(1), {}};
  }
  report(first_module, output_errors());
}

bool MixtureQuantizer::any_planned(ExpertInput input) const {
  const auto planned = [&](const ExpertSpec& expert) {
    const std::vector<LinearId> readers = readers_of(expert, input);
    return std::any_of(readers.begin(), readers.end(), [&](LinearId id) { return block_.is_planned(id); });
  };
  return std::any_of(mixture_.experts.begin(), mixture_.experts.end(), planned) ||
         (mixture_.shared && planned(*mixture_.shared));
}

bool MixtureQuantizer::is_starved(std::size_t expert) const {
  return counts_[expert] < starved_below(mixture_);
}

void MixtureQuantizer::check(const InputStats& stats, SiteId site) const {
  find_together(block_.run.ranks(), [&] {
    check_finite(stats, block_.spec, site, block_.run.source.checkpoint().path(), block_.run.plan.compute);
  });
}

// Of the weights that multiply rows, over all rows of all experts.
double MixtureQuantizer::mean_square() const {
  if (!mixture_.weighs_input) return 1;
  return std::accumulate(squares_.begin(), squares_.end(), 0.0) /
         static_cast<double>(std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0}));
}

// 8-bit inputs are judged on rows.
bool MixtureQuantizer::needs_rows() const {
  const std::vector<LinearId> linears = mixture_.linears();
  return std::any_of(linears.begin(), linears.end(), [&](LinearId id) {
    const auto planned = block_.run.planned.find(block_.spec.at(id).module);
    return planned != block_.run.planned.end() &&
           planned->second->scheme.activation_scale != ActivationScale::kNone;
  });
}

void MixtureQuantizer::see_layer() {
  all_.stats = stream_.statistics(mixture_.input, block_.number, block_.weights, Samples::kAll,
                                  needs_rows() ? &all_.rows : nullptr);
  check(all_.stats, mixture_.input);
  block_.run.clock.charge("forward and statistics");
}

// The router is scaled and stored rounded, so it may send a row elsewhere from here on.
void MixtureQuantizer::fold_input() {
  if (!folding_.can_fold(mixture_.input)) return;
  std::map<LinearId, double> share;
  for (std::size_t e = 0; e < counts_.size(); ++e)
    for (const LinearId id : readers_of(mixture_.experts[e], ExpertInput::kOfGateAndUp))
      share[id] = squares_[e] / static_cast<double>(stream_.tokens());
  InputWithGram input(std::move(all_), block_.run);
  const std::vector<float> s = folding_.fold(mixture_.input, input.seen, &input.gram, share);
  all_ = std::move(input.seen);
  if (s.empty()) return;
  all_.divide_channels(s);
  counts_ = stream_.routed_rows(block_.number, block_.weights, &squares_);
}

void MixtureQuantizer::fold_outputs() {
  std::vector<SeenExpert> experts;
  for (std::size_t e = 0; e < counts_.size(); ++e)
    if (folding_.can_fold(mixture_.experts[e].inner)) experts.push_back(seen(e, ExpertInput::kOfOutput));
  const auto fold = [&](const SeenExpert& expert, SeenInput seen) {
    check(seen.stats, expert.expert->inner);
    InputWithGram input(std::move(seen), block_.run);
    folding_.fold(expert.expert->inner, input.seen, &input.gram);
  };
  each_seen(experts, ExpertInput::kOfOutput, fold, true);
  if (!mixture_.shared || !folding_.can_fold(mixture_.shared->inner)) return;
  const SeenExpert shared = shared_expert();
  each_seen({&shared, 1}, ExpertInput::kOfOutput, fold, true);
}

// lent: gate and up are not quantized yet, and lie on the devices for this pass.
void MixtureQuantizer::each_seen(std::span<const SeenExpert> experts, ExpertInput input, const Visit& visit,
                                 bool lent) {
  const std::size_t at_once = block_.run.experts_at_once;
  const bool keeps_rows = !lent && needs_rows();
  for (std::size_t first = 0; first < experts.size(); first += at_once) {
    const std::span<const SeenExpert> batch =
        experts.subspan(first, std::min(at_once, experts.size() - first));
    const auto each_lent = [&](const auto& visit_linear) {
      for (const SeenExpert& seen : batch)
        for (const LinearId id : readers_of(*seen.expert, ExpertInput::kOfGateAndUp)) visit_linear(id);
    };
    if (lent) each_lent([&](LinearId id) { block_.lend(id); });
    std::vector<RowSample> rows;
    std::vector<InputStats> stats =
        stream_.expert_statistics(block_.number, block_.weights, batch, input, keeps_rows ? &rows : nullptr);
    if (lent) each_lent([&](LinearId id) { block_.take_back(id); });
    rows.resize(batch.size());
    block_.run.clock.charge("forward and statistics");
    for (std::size_t i = 0; i < batch.size(); ++i)
      visit(batch[i], {std::exchange(stats[i], InputStats(1)), std::exchange(rows[i], {})});
  }
}

SeenExpert MixtureQuantizer::seen(std::size_t expert, ExpertInput input) const {
  const bool every = input == ExpertInput::kOfOutput && is_starved(expert);
  return {&mixture_.experts[expert], every ? std::nullopt : std::optional(expert),
          every ? stream_.tokens() : counts_[expert],
          every ? static_cast<float>(std::sqrt(mean_square())) : 1};
}

void MixtureQuantizer::pass_experts(ExpertInput input) {
  std::vector<SeenExpert> experts;
  for (std::size_t e = 0; e < mixture_.experts.size(); ++e) experts.push_back(seen(e, input));
  each_seen(experts, input, [&](const SeenExpert& expert, SeenInput seen) {
    if (input == ExpertInput::kOfGateAndUp) {
      seen.stats.add_prior(all_.stats, prior_tokens(mixture_), mean_square());
      if (is_starved(*expert.routed)) seen.rows = all_.rows;
    }
    quantize_readers(*expert.expert, input, std::move(seen));
  });
}

void MixtureQuantizer::pass_shared(ExpertInput input) {
  if (!mixture_.shared) return;
  if (input == ExpertInput::kOfGateAndUp) return quantize_readers(*mixture_.shared, input, std::move(all_));
  const SeenExpert shared = shared_expert();
  each_seen({&shared, 1}, input, [&](const SeenExpert&, SeenInput seen) {
    quantize_readers(*mixture_.shared, input, std::move(seen));
  });
}

void MixtureQuantizer::quantize_readers(const ExpertSpec& expert, ExpertInput input, SeenInput seen) {
  std::vector<LinearId> opened;
  for (const LinearId id : readers_of(expert, input))
    if (block_.open(id)) opened.push_back(id);
  if (opened.empty()) return;
  check(seen.stats, input == ExpertInput::kOfOutput ? expert.inner : mixture_.input);
  InputWithGram with_gram(std::move(seen), block_.run);
  judgement_.measure_rounding(with_gram, opened);
  for (const LinearId id : opened) quantize_(id, with_gram);
}

// Of each expert: its rows, and the worst relative error of its linears on what they were calibrated on.
void MixtureQuantizer::report(std::size_t first_module, const std::vector<double>& output_errors) const {
  QuantizeReport& report = block_.run.report;
  std::map<std::string, double> errors;
  for (std::size_t i = first_module; i < report.modules.size(); ++i)
    errors[report.modules[i].module] = report.modules[i].relative_error;
  Json tokens = Json::array(), worst = Json::array(), starved = Json::array(), unreached = Json::array();
  for (std::size_t e = 0; e < counts_.size(); ++e) {
    tokens.push_back(counts_[e]);
    double error = 0;
    for (const ExpertInput input : {ExpertInput::kOfGateAndUp, ExpertInput::kOfOutput})
      for (const LinearId id : readers_of(mixture_.experts[e], input))
        if (const auto found = errors.find(block_.spec.at(id).module); found != errors.end())
          error = std::max(error, found->second);
    worst.push_back(error);
    if (is_starved(e)) starved.push_back(static_cast<std::int64_t>(e));
    if (counts_[e] == 0) unreached.push_back(static_cast<std::int64_t>(e));
  }
  std::vector<std::int64_t> sorted = counts_;
  std::sort(sorted.begin(), sorted.end());
  std::vector<double> by_error = output_errors;
  std::sort(by_error.begin(), by_error.end());
  Json errors_of_outputs = Json::array();
  for (const double error : output_errors) errors_of_outputs.push_back(error);
  if (starved.items().size() != 0)
    report.warnings.push_back(fmt::format(
        "{}: {} of {} experts had fewer than {} calibration tokens, {} of them none: all {} tokens went "
        "through their output linears",
        block_.spec.prefix, starved.items().size(), counts_.size(), starved_below(mixture_),
        unreached.items().size(), stream_.tokens()));
  report.mixtures.push_back(Json::object({{"block", block_.spec.prefix},
                                          {"experts", static_cast<std::int64_t>(counts_.size())},
                                          {"tokens_min", sorted.front()},
                                          {"tokens_median", sorted[sorted.size() / 2]},
                                          {"tokens_max", sorted.back()},
                                          {"tokens", std::move(tokens)},
                                          {"prior_tokens", prior_tokens(mixture_)},
                                          {"starved_below", starved_below(mixture_)},
                                          {"starved", std::move(starved)},
                                          {"unreached", std::move(unreached)},
                                          {"relative_error", std::move(worst)},
                                          {"output_error", std::move(errors_of_outputs)},
                                          {"output_error_min", by_error.front()},
                                          {"output_error_median", by_error[by_error.size() / 2]},
                                          {"output_error_max", by_error.back()},
                                          {"worst_expert", place_of_greatest(output_errors)}}));
}

}  // namespace llmq
