#include "quant/plan/ranks/rank_traffic.h"

#include <algorithm>
#include <bit>
#include <set>
#include <string>

#include "calibration/row_sample.h"
#include "export/gguf/rounded_slabs.h"
#include "quant/methods/awq/clip_search.h"
#include "quant/pipeline/scale_folding.h"

namespace llmq {
namespace {

constexpr std::uint64_t kRecordBytes = 1000;  // measured: what rank 0 is told of a linear
constexpr std::uint64_t kPlaceBytes = 8;

std::uint64_t counted(std::int64_t value) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(value, 0));
}

// What the calibration of a block sums up, input by input, as quant/pipeline/block_quantizer.cpp and
// quant/pipeline/experts/mixture_quantizer.cpp ask for it.
class SharedSums {
 public:
  explicit SharedSums(const Plan& plan) : plan_(plan) {
    for (const PlannedModule& module : plan.modules) {
      planned_.insert(module.module);
      rounds_inputs_ = rounds_inputs_ || module.scheme.activation_scale != ActivationScale::kNone;
    }
    needs_rows_ = rounds_inputs_ || (plan.traits->samples_rows && !plan.smoothquant.alpha);
  }

  void add(const BlockSpec& block) {
    for (const SublayerSpec& part : block.sublayers)
      if (const auto* const mixture = std::get_if<MixtureSpec>(&part.mixer))
        add_mixture(block, *mixture);
      else
        for (const SiteId site : part.sites) add_site(block, part, site);
  }

  std::uint64_t triangles = 0, products = 0, magnitudes = 0, rows = 0;  // numbers: of FP64, of rows FP32
  double factors = 0;                                                   // operations

 private:
  bool is_planned(const BlockSpec& block, LinearId id) const {
    return planned_.count(block.at(id).module) != 0;
  }
  bool can_fold(const BlockSpec& block, SiteId site) const {
    return site_can_fold(*plan_.traits, block, site, [&](LinearId id) { return is_planned(block, id); });
  }

  void add_input(std::int64_t channels, bool gram, bool keeps_rows) {
    const std::uint64_t k = counted(channels);
    factors += static_cast<double>(k) * static_cast<double>(k) * static_cast<double>(k);
    if (gram) triangles += k * (k + 1) / 2;
    magnitudes += k;
    if (keeps_rows) rows += counted(RowSample::kWanted) * k;
  }

  void add_site(const BlockSpec& block, const SublayerSpec& part, SiteId id) {
    const SiteSpec& site = block.at(id);
    const auto planned = [&](LinearId reader) { return is_planned(block, reader); };
    if (std::none_of(site.readers.begin(), site.readers.end(), planned)) return;
    const auto* const made = std::get_if<LinearRows>(&site.producer);
    if (made != nullptr && planned(made->rows.linear) && can_fold(block, id))
      add_input(site.channels, plan_.traits->searches_by_gram, needs_rows_);
    add_input(site.channels, true, needs_rows_);
    if (!takes_back_upstream(plan_) || part.shares_what_is_added()) return;
    for (const LinearId reader : site.readers)
      if (part.is_output(reader) && planned(reader))
        products += counted(block.at(reader).out_features) * counted(block.at(reader).in_features);
  }

  void add_mixture(const BlockSpec& block, const MixtureSpec& mixture) {
    const auto planned = [&](LinearId id) { return is_planned(block, id); };
    const auto reads = [&](const ExpertSpec& expert) {
      return planned(expert.gate.linear) || planned(expert.up.linear);
    };
    std::vector<ExpertSpec> all = mixture.experts;
    if (mixture.shared) all.push_back(*mixture.shared);
    const bool reading = std::any_of(all.begin(), all.end(), reads),
               giving = std::any_of(all.begin(), all.end(),
                                    [&](const ExpertSpec&expert) { return planned(expert.output); });
    if (reading) {
      add_input(mixture.hidden, true, rounds_inputs_);
      for (const ExpertSpec& expert : all)
        if (can_fold(block, expert.inner)) add_input(block.at(expert.inner).channels, true, false);
      for (std::size_t e = 0; e < mixture.experts.size(); ++e)
        add_input(mixture.hidden, true, rounds_inputs_);
    }
    if (giving)
      for (const ExpertSpec& expert : all) add_input(block.at(expert.inner).channels, true, rounds_inputs_);
  }

  const Plan& plan_;
  std::set<std::string> planned_;
  bool rounds_inputs_ = false, needs_rows_ = false;
};

// What rows of all planned linears become, in bytes.
struct DealtRows {
  std::uint64_t codes = 0, losses = 0;
  double operations = 0;
};

bool deals_codes(const Plan& plan) { return plan.traits->factorizes && !plan.device_room; }

DealtRows dealt_rows(const Plan& plan) {
  constexpr std::uint64_t kSampledRows = 256, kJudged = 3;  // rows of a search; looks at each row
  DealtRows dealt;
  for (const PlannedModule& module : plan.modules) {
    const std::uint64_t out = counted(module.out_features), in = counted(module.in_features),
                        groups = counted(module.scheme.groups_of(module.in_features));
    dealt.operations += static_cast<double>(out) * static_cast<double>(in) * static_cast<double>(in);
    if (deals_codes(plan)) dealt.codes += out * in + out * groups * 5;
    dealt.losses += kJudged * out * 8;
    if (plan.traits->searches_by_gram)
      dealt.losses += std::min(out, kSampledRows) * counted(plan.awq.grid) *
                      (plan.awq.duo_scaling == AwqOptions::Duo::kBoth ? 2 : 1) * 8;
    if (plan.traits->clips && plan.awq.clip)
      dealt.losses += out * groups * clip_options(module.scheme.symmetric) * 8;
  }
  return dealt;
}

// Traffic of several ranks, part by part.
class Sending {
 public:
  explicit Sending(int ranks)
      : others_(counted(ranks) - 1), steps_(static_cast<std::uint64_t>(std::bit_width(others_))) {
    traffic_.ranks = ranks;
  }

  // Numbers that every rank has a share of and all get the sum of, or all of.
  void to_all(const char* what, std::uint64_t numbers, std::uint64_t bytes) {
    add(what, 2 * others_ * numbers * bytes, (others_ + steps_) * numbers * bytes);
  }
  // Bytes of which each rank makes its part and all get the others', rank after rank.
  void made_by_parts(const char* what, std::uint64_t bytes) { add(what, others_ * bytes, steps_ * bytes); }
  // What rank 0 is given by the others.
  void to_first(const char* what, std::uint64_t bytes) { add(what, bytes, bytes); }

  RankTraffic traffic() && { return std::move(traffic_); }

 private:
  void add(const char* what, std::uint64_t all, std::uint64_t in_turn) {
    if (all == 0) return;
    traffic_.parts.push_back({what, all});
    traffic_.in_turn += in_turn;
  }

  std::uint64_t others_, steps_;  // of a tree: ceil(log2 N)
  RankTraffic traffic_;
};

// Of what is dealt evenly, what others than rank 0 have.
std::uint64_t share_of_others(std::uint64_t bytes, int ranks) {
  return bytes / counted(ranks) * (counted(ranks) - 1) +
         bytes % counted(ranks) * (counted(ranks) - 1) / counted(ranks);
}

// Channels of every input that an importance matrix has, experts' included
// (quant/pipeline/imatrix_collection.cpp).
std::uint64_t squares_of(const ModelSpec& spec) {
  std::uint64_t channels = 0;
  for (const BlockSpec& block : spec.blocks)
    for (const SublayerSpec& part : block.sublayers) {
      const auto* const mixture = std::get_if<MixtureSpec>(&part.mixer);
      if (mixture == nullptr) {
        for (const SiteId site : part.sites) channels += counted(block.at(site).channels);
        continue;
      }
      channels +=
          counted(mixture->hidden) + mixture->experts.size() * counted(mixture->hidden + mixture->width);
      if (mixture->shared) channels += counted(mixture->shared_width);
    }
  return channels;
}

}  // namespace

Json RankTraffic::to_json(double bytes_per_second) const {
  return Json::object({{"count", ranks},
                       {"traffic", named_bytes_json(parts)},
                       {"traffic_bytes", Json(bytes())},
                       {"bytes_in_turn", Json(in_turn)},
                       {"network_bytes_per_second", bytes_per_second},
                       {"network_seconds", seconds(bytes_per_second)}});
}

double dealt_rounding(const Plan& plan, const ModelSpec& spec) {
  if (!plan.needs_calibration) return 0;
  if (!plan.traits->factorizes) return plan.traits->clips && plan.awq.clip ? 1 : 0;
  if (!deals_codes(plan)) return 0;
  SharedSums sums(plan);
  for (const BlockSpec& block : spec.blocks) sums.add(block);
  const double rows = dealt_rows(plan).operations;
  return rows / (rows + sums.factors);
}

RankTraffic rank_traffic(const Plan& plan, const ModelSpec& spec, int ranks) {
  Sending sending(ranks);
  if (ranks > 1 && plan.needs_calibration) {
    SharedSums sums(plan);
    for (const BlockSpec& block : spec.blocks) sums.add(block);
    sending.to_all("Gram triangles", sums.triangles, kPlaceBytes);
    sending.to_all("what upstream error took", sums.products, kPlaceBytes);
    sending.to_all("magnitudes of inputs", sums.magnitudes, kPlaceBytes + 4);
    sending.to_all("sampled rows of inputs", sums.rows, 8);
    const DealtRows dealt = dealt_rows(plan);
    sending.made_by_parts("codes and scales", dealt.codes);
    sending.made_by_parts("what rows lose", dealt.losses);
  }
  sending.to_first("records of linears", share_of_others(plan.modules.size() * kRecordBytes, ranks));
  return std::move(sending).traffic();
}

RankTraffic rank_traffic(const GgufPlan& plan, const ModelSpec& spec, int ranks) {
  Sending sending(ranks);
  if (ranks > 1 && plan.needs_calibration()) sending.to_all("sums of squares of inputs", squares_of(spec), 8);
  std::uint64_t rounded = 0;
  std::size_t number = 0;  // of a slab
  for (const GgufPlan::Tensor& tensor : plan.tensors)
    for (const GgufSlab& slab : slabs_of(tensor.shape, 0, Checkpoint::kBandElements))
      if (rank_of_slab(number++, ranks) != 0)
        rounded += ggml_row_bytes(tensor.dtype, tensor.shape.back()) * counted(slab.count);
  sending.to_first("rows, rounded", rounded);
  return std::move(sending).traffic();
}

RankCosts over_ranks(Plan plan, const Checkpoint& checkpoint, const ModelSpec& spec, int threads, int ranks) {
  plan.ranks = ranks;
  return {rank_traffic(plan, spec, ranks), estimate_costs(plan, checkpoint, spec, threads).peak_bytes};
}

RankCosts over_ranks(GgufPlan plan, const Checkpoint& checkpoint, const ModelSpec& spec, int ranks) {
  plan.ranks = ranks;
  return {rank_traffic(plan, spec, ranks), estimate_costs(plan, checkpoint, spec).peak_bytes};
}

}  // namespace llmq
