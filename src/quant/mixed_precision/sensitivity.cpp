#include "quant/mixed_precision/sensitivity.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <numbers>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "calibration/joined_sums.h"
#include "quant/methods/awq/scale_search.h"
#include "quant/methods/gram_loss.h"
#include "quant/mixed_precision/mixed_precision.h"
#include "quant/mixed_precision/perturbed_streams.h"
#include "quant/pipeline/activation_stream.h"
#include "quant/pipeline/fold.h"
#include "quant/pipeline/scale_folding.h"
#include "ranks/agreement.h"

namespace llmq {
namespace {

std::vector<std::vector<std::int32_t>> first_samples(const CalibrationSet& set, std::int64_t count,
                                                     std::int64_t length) {
  std::vector<std::vector<std::int32_t>> samples;
  for (const std::vector<std::int32_t>& sample : set.samples) {
    if (static_cast<std::int64_t>(samples.size()) == count) break;
    const auto tokens = std::min(static_cast<std::ptrdiff_t>(length), std::ssize(sample));
    samples.emplace_back(sample.begin(), sample.begin() + tokens);
  }
  return samples;
}

// Where inputs are rounded to E4M3 as they come: sum_nk w_nk^2 G_kk c, c the mean square of a number's
// relative error. Within [2^e, 2^(e+1)) steps are 2^(e-3), so that c = 2^-6 / 12 * mean(m^-2); m, spread as
// logarithms are, has mean(m^-2) = 3 / (8 ln 2).
double float8_input_loss(std::span<const float> weight, const InputStats& stats) {
  constexpr double kRelative = 3.0 / (64 * 12 * 8 * std::numbers::ln2);
  const std::vector<double> squares = stats.gram_diagonal();  // of the inputs, summed over the tokens
  double sum = 0;
  for (std::size_t i = 0; i < weight.size(); ++i)
    sum += static_cast<double>(weight[i]) * weight[i] * squares[i % squares.size()];
  return kRelative * sum;
}

// A block's groups while they are measured, and the linears of those that this rank forks, rounded to the
// fewest bits.
struct OpenGroup {
  MeasuredGroup measured;
  double of_weights = 0;  // of measured.gram_loss[0]: without what rounded inputs add
  bool is_forked = false;
  std::vector<std::pair<LinearId, BlockLinear>> rounded;
};

class Measuring {
 public:
  Measuring(const Plan& plan, const LinearSource& source, const ForwardContext& context, Ranks& ranks)
      : plan_(plan),
        candidates_(plan.candidates),
        source_(source),
        context_(context),
        ranks_(ranks),
        pool_(context.backend.workers()),
        experts_at_once_(
            static_cast<std::size_t>(-most_of(ranks, -std::max<std::int64_t>(1, plan.experts_at_once)))),
        nearest_(plain_rounding().make(plan, plan.compute)),
        chosen_(plan.traits->make(plan, plan.compute)) {
    for (std::size_t i = 0; i < plan.modules.size(); ++i) place_[plan.modules[i].module] = i;
  }

  // The Gram losses of a block's linears; the stream moves on to the next block.
  std::vector<OpenGroup> judge_block(int block, const BlockWeights& weights, ActivationStream& stream) {
    const BlockSpec& spec = context_.spec.blocks[static_cast<std::size_t>(block)];
    Groups open;
    for (std::size_t part = 0; part < spec.sublayers.size(); ++part) {
      if (const auto* const mixture = std::get_if<MixtureSpec>(&spec.sublayers[part].mixer))
        judge_mixture(*mixture, block, weights, stream, open);
      else
        for (const SiteId site : spec.sublayers[part].sites)
          judge_site(spec, site, stream.statistics(site, block, weights, Samples::kAll),
                     open[{site, Of::kAll}]);
      stream.finish(part, block, weights);
    }
    std::vector<OpenGroup> groups;
    groups.reserve(open.size());
    for (auto& [key, group] : open)
      if (!group.measured.modules.empty()) groups.push_back(std::move(group));
    return groups;
  }

 private:
  // Whose linears, of those that read one site, are a group.
  enum class Of : std::uint8_t { kAll, kExperts, kShared };
  using Groups = std::map<std::pair<SiteId, Of>, OpenGroup>;

  // Gate and up of all experts, then all outputs, of as many at a time as every rank's memory has room for.
  void judge_mixture(const MixtureSpec& mixture, int block, const BlockWeights& weights,
                     ActivationStream& stream, Groups& open) {
    std::vector<SeenExpert> experts;
    for (std::size_t e = 0; e < mixture.experts.size(); ++e) experts.push_back({&mixture.experts[e], e});
    std::vector<SeenExpert> shared;
    if (mixture.shared) shared.push_back({&*mixture.shared, std::nullopt});
    const auto judge = [&](std::span<const SeenExpert> seen, ExpertInput input, OpenGroup& group) {
      const BlockSpec& spec = context_.spec.blocks[static_cast<std::size_t>(block)];
      for (std::size_t first = 0; first < seen.size(); first += experts_at_once_) {
        const auto batch = seen.subspan(first, std::min(experts_at_once_, seen.size() - first));
        std::vector<InputStats> stats = stream.expert_statistics(block, weights, batch, input);
        for (std::size_t i = 0; i < batch.size(); ++i)
          judge_expert(spec, mixture, *batch[i].expert, input, std::exchange(stats[i], InputStats(1)), group);
      }
    };
    for (const ExpertInput input : {ExpertInput::kOfGateAndUp, ExpertInput::kOfOutput}) {
      const auto site_of = [&](const ExpertSpec& expert) {
        return input == ExpertInput::kOfOutput ? expert.inner : mixture.input;
      };
      judge(experts, input, open[{site_of(mixture.experts.front()), Of::kExperts}]);
      if (mixture.shared) judge(shared, input, open[{site_of(*mixture.shared), Of::kShared}]);
    }
  }

  void judge_expert(const BlockSpec& block, const MixtureSpec& mixture, const ExpertSpec& expert,
                    ExpertInput input, const InputStats& stats, OpenGroup& group) {
    const bool of_output = input == ExpertInput::kOfOutput;
    if (stats.tokens() != 0) check(stats, block, of_output ? expert.inner : mixture.input);
    Scaled as_it_is;
    judge_readers(block,
                  of_output ? std::vector<LinearId>{expert.output}
                            : std::vector<LinearId>{expert.gate.linear, expert.up.linear},
                  stats, as_it_is, group);
  }

  void check(const InputStats& stats, const BlockSpec& block, SiteId site) const {
    find_together(ranks_,
                  [&] { check_finite(stats, block, site, source_.checkpoint().path(), context_.compute); });
  }

  // Of a site: the numbers of its readers that are read already, and what its channels are multiplied by in
  // them and divided by in its statistics; empty: 1.
  struct Scaled {
    std::map<LinearId, ZeroedNumbers<float>> weights;
    std::vector<float> s;
  };

  // The readers of a site outside of a mixture, behind the scale that the run would move into them.
  void judge_site(const BlockSpec& block, SiteId id, InputStats stats, OpenGroup& group) {
    check(stats, block, id);
    Scaled scaled = scale_of(block, id, stats);
    if (!scaled.s.empty()) stats.divide_channels(scaled.s);
    judge_readers(block, block.at(id).readers, stats, scaled, group);
  }

  // As if all readers, and what makes their input, had the first candidate's scheme, and as it is before a
  // norm's gain is stored.
  Scaled scale_of(const BlockSpec& block, SiteId id, const InputStats& stats) {
    Scaled scaled;
    const auto is_planned = [&](LinearId linear) { return place_.contains(block.at(linear).module); };
    if (!plan_.searches_while_measuring() || !site_can_fold(*plan_.traits, block, id, is_planned))
      return scaled;
    const SiteSpec& site = block.at(id);
    ScaleProblem problem;
    for (const LinearId reader : site.readers) {
      if (!is_planned(reader)) continue;
      const LinearSpec& linear = block.at(reader);
      ScaleReader& own = problem.readers.emplace_back();
      own.weight = scaled.weights.emplace(reader, source_.weight(linear, pool_)).first->second;
      own.out_features = linear.out_features;
      own.scheme = candidates_.front().modules[place_.at(linear.module)].scheme;
    }
    GramLoss gram(stats, context_.backend, context_.compute, {}, ranks_);
    problem.stats = &stats, problem.gram = &gram;
    problem.producer_of = tied_channels(site);
    problem.compute = context_.compute;
    AwqScales found = search_awq_scales(problem, plan_.awq, context_.backend);
    if (!found.identity) scaled.s = std::move(found.s);
    return scaled;
  }

  // W diag(s) as it is judged.
  ZeroedNumbers<float> weight_of(const LinearSpec& linear, Scaled& scaled) const {
    const auto held = scaled.weights.find(linear.id);
    ZeroedNumbers<float> weight =
        held == scaled.weights.end() ? source_.weight(linear, pool_) : std::move(held->second);
    change_columns(weight, scaled.s, [](float& w, float s) { w *= s; });
    return weight;
  }

  template <class Change>
  void change_columns(std::span<float> matrix, std::span<const float> s, const Change& change) const {
    if (s.empty()) return;
    pool_.parallel_for(matrix.size() / s.size(), [&](std::size_t row, int) {
      for (std::size_t c = 0; c < s.size(); ++c) change(matrix[row * s.size() + c], s[c]);
    });
  }

  void judge_readers(const BlockSpec& block, const std::vector<LinearId>& readers, const InputStats& stats,
                     Scaled& scaled, OpenGroup& group) {
    std::optional<GramLoss> gram;  // none of an expert that no row came to: its rounding costs nothing here
    if (stats.tokens() != 0)
      gram.emplace(stats, context_.backend, context_.compute, std::span<const std::shared_ptr<Backend>>(),
                   ranks_);
    for (const LinearId id : readers) {
      const LinearSpec& linear = block.at(id);
      const auto planned = place_.find(linear.module);
      if (planned == place_.end()) continue;
      if (group.measured.modules.empty()) group.is_forked = forks_++ % ranks_.size() == ranks_.rank();
      group.measured.modules.push_back(planned->second);
      group.measured.gram_loss.resize(candidates_.size());
      judge_linear(linear, planned->second, stats, gram, scaled, group);
    }
  }

  void judge_linear(const LinearSpec& linear, std::size_t place, const InputStats& stats,
                    std::optional<GramLoss>& gram, Scaled& scaled, OpenGroup& group) {
    const ZeroedNumbers<float> weight = weight_of(linear, scaled);
    for (std::size_t c = 0; c < candidates_.size(); ++c) {
      if (candidates_[c].stays_dense()) continue;
      const QuantScheme& scheme = candidates_[c].modules[place].scheme;
      RoundingProblem problem;
      problem.weight = weight;
      problem.out_features = linear.out_features, problem.in_features = linear.in_features;
      problem.scheme = scheme;
      problem.ranks = &ranks_;
      if (gram) problem.stats = &stats, problem.gram = &*gram;
      const QuantizedMatrix matrix =
          rounding_of(scheme, gram.has_value()).quantize(problem, context_.backend);
      if (gram) {
        double& loss = group.measured.gram_loss[c];
        loss += matrix.loss;
        if (c == 0) group.of_weights += matrix.loss;
        if (scheme.activation_scale != ActivationScale::kNone) loss += float8_input_loss(weight, stats);
      }
      if (c != 0 || !group.is_forked) continue;
      ZeroedNumbers<float> value(matrix.codes.size());
      dequantize(matrix, value, pool_);
      change_columns(value, scaled.s, [](float& w, float s) { w /= s; });
      BlockLinear& rounded = group.rounded.emplace_back(linear.id, BlockLinear()).second;
      set_weight(context_.backend, context_.compute, linear,
                 TensorView(value.data(), DType::kF32, {linear.out_features, linear.in_features}), rounded);
    }
  }

  const Method& rounding_of(const QuantScheme& scheme, bool seen) const {
    return seen && plan_.measures_by_method() && chooses_codes(*plan_.traits, scheme) ? *chosen_ : *nearest_;
  }

  const Plan& plan_;
  const std::vector<PrecisionCandidate>& candidates_;
  const LinearSource& source_;
  const ForwardContext& context_;
  Ranks& ranks_;
  ThreadPool& pool_;
  const std::size_t experts_at_once_;
  std::int64_t forks_ = 0;                    // of all ranks, of groups met so far
  std::unique_ptr<Method> nearest_, chosen_;  // to the nearest, and as the run rounds
  std::map<std::string, std::size_t> place_;
};

// KL falls with more bits as the Gram loss does.
void estimate_losses(MeasuredGroup& group) {
  for (const double loss : group.gram_loss)
    group.loss.push_back(group.gram_loss[0] == 0 ? 0 : group.divergence * loss / group.gram_loss[0]);
}

void swap_weights(OpenGroup& group, BlockWeights& weights) {
  for (auto& [id, linear] : group.rounded)
    for (std::size_t part = 0; part < linear.parts.size(); ++part)
      std::swap(weights.at(id).parts[part].weight, linear.parts[part].weight);
}

}  // namespace

// The readers of a site are one group; a mixture has two of its experts and two of the shared one.
std::vector<std::uint64_t> group_weights(const BlockSpec& block) {
  std::vector<std::uint64_t> groups;
  const auto add = [&](std::uint64_t& group, std::span<const LinearId> linears) {
    for (const LinearId id : linears)
      group += static_cast<std::uint64_t>(block.at(id).out_features * block.at(id).in_features);
  };
  const auto add_experts = [&](std::span<const ExpertSpec> experts) {
    std::uint64_t reading = 0, giving = 0;
    for (const ExpertSpec& expert : experts) {
      add(reading, std::array{expert.gate.linear, expert.up.linear});
      add(giving, {&expert.output, 1});
    }
    groups.insert(groups.end(), {reading, giving});
  };
  for (const SublayerSpec& part : block.sublayers)
    if (const auto* const mixture = std::get_if<MixtureSpec>(&part.mixer)) {
      add_experts(mixture->experts);
      if (mixture->shared) add_experts({&*mixture->shared, 1});
    } else {
      for (const SiteId site : part.sites) add(groups.emplace_back(), block.at(site).readers);
    }
  return groups;
}

std::int64_t groups_of(const ModelSpec& spec) {
  std::int64_t groups = 0;
  for (const BlockSpec& block : spec.blocks) groups += std::ssize(group_weights(block));
  return groups;
}

std::int64_t probe_streams(std::int64_t forks, std::int64_t ranks) { return 1 + (forks + ranks - 1) / ranks; }

std::vector<MeasuredGroup> measure_candidates(const Plan& plan, const Checkpoint& checkpoint,
                                              const ModelSpec& spec, const CalibrationSet& calibration,
                                              Backend& backend, const std::function<void()>& on_step,
                                              Ranks& ranks) {
  const LinearSource source = LinearSource::open(checkpoint);
  const auto length = static_cast<std::int64_t>(calibration.samples.front().size());
  const ForwardContext context = make_forward_context(spec, backend, plan.compute, length);
  CalibrationSet few;
  few.samples = first_samples(calibration, plan.measured_samples, length);
  SamplePlace place{true};
  place.ranks = &ranks;  // of which some may have no chunk of so few samples
  ActivationStream stream(std::span(&context, 1), few, plan.chunk_tokens, place);
  stream.embed(checkpoint, few);
  const auto probe_samples = first_samples(calibration, kProbeSamples, kProbeLength);
  ProbeStreams probes(context, checkpoint, probe_samples, probe_streams(groups_of(spec), ranks.size()));
  Measuring measuring(plan, source, context, ranks);
  Progress progress("measure", static_cast<double>(spec.blocks.size()));
  std::vector<MeasuredGroup> all;
  std::vector<double> inputs;      // by how much rounded inputs raise the loss of a group's first candidate
  std::vector<std::size_t> forks;  // the groups of this rank's probes
  for (std::size_t b = 0; b < spec.blocks.size(); ++b) {
    const int block = static_cast<int>(b);
    BlockWeights weights = load_block(backend, plan.compute, source, spec.blocks[b]);
    for (OpenGroup& group : measuring.judge_block(block, weights, stream)) {
      if (group.is_forked) {
        swap_weights(group, weights);
        probes.fork(block, weights);
        swap_weights(group, weights);
        forks.push_back(all.size());
      }
      inputs.push_back(group.of_weights == 0 ? 1 : group.measured.gram_loss[0] / group.of_weights);
      all.push_back(std::move(group.measured));
    }
    probes.advance(block, weights);
    progress.advance(1, fmt::format("{}/{} {}", b + 1, spec.blocks.size(), spec.blocks[b].prefix), "", true);
    if (on_step) on_step();
  }
  const std::vector<double> own = forks.empty() ? std::vector<double>() : probes.divergences(source);
  std::vector<double> divergences(all.size());
  for (std::size_t i = 0; i < own.size(); ++i) divergences[forks[i]] = own[i];
  join_known(divergences, ranks);
  for (std::size_t g = 0; g < all.size(); ++g) {
    all[g].divergence = divergences[g] * inputs[g];
    estimate_losses(all[g]);
  }
  return all;
}

Json measured_json(const std::vector<MeasuredGroup>& groups) {
  Json list = Json::array();
  for (const MeasuredGroup& group : groups) {
    Json modules = Json::array(), losses = Json::array();
    for (const std::size_t place : group.modules) modules.push_back(static_cast<std::int64_t>(place));
    for (const double loss : group.gram_loss) losses.push_back(loss);
    list.push_back(Json::object({{"modules", modules}, {"kl", group.divergence}, {"gram_loss", losses}}));
  }
  return list;
}

std::optional<std::vector<MeasuredGroup>> read_measured(const Json& json, const Plan& plan) {
  std::vector<MeasuredGroup> groups;
  std::vector<bool> seen(plan.modules.size());
  try {
    for (const Json& item : json.items()) {
      MeasuredGroup& group = groups.emplace_back();
      for (const Json& module : item.at("modules").items()) {
        const auto place = static_cast<std::size_t>(module.as_integer());
        if (place >= seen.size() || seen[place]) return std::nullopt;
        seen[place] = true;
        group.modules.push_back(place);
      }
      group.divergence = item.at("kl").as_double();
      for (const Json& loss : item.at("gram_loss").items()) group.gram_loss.push_back(loss.as_double());
      if (group.modules.empty() || group.gram_loss.size() != plan.candidates.size()) return std::nullopt;
      estimate_losses(group);
    }
  } catch (const Error&) {  // of another form
    return std::nullopt;
  }
  if (std::find(seen.begin(), seen.end(), false) != seen.end()) return std::nullopt;
  return groups;
}

}  // namespace llmq
