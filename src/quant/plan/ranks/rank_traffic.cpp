#include "quant/plan/ranks/rank_traffic.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <string>

#include "calibration/row_sample.h"
#include "export/gguf/rounded_slabs.h"
#include "quant/methods/awq/scale_search.h"
#include "quant/pipeline/scale_folding.h"
#include "quant/plan/ranks/measuring_work.h"

namespace llmq {
namespace {

constexpr std::uint64_t kRecordBytes = 1000;  // measured: what rank 0 is told of a linear
constexpr std::uint64_t kPlaceBytes = 8;

// What the calibration of a block sums up, input by input, as quant/pipeline/block_quantizer.cpp and
// quant/pipeline/experts/mixture_quantizer.cpp ask for it.
class SharedSums {
 public:
  explicit SharedSums(const Plan& plan) : plan_(plan) {
    for (const PlannedModule& module : plan.modules)
      rounds_inputs_[module.module] = module.scheme.activation_scale != ActivationScale::kNone;
  }

  void add(const BlockSpec& block) {
    for (const SublayerSpec& part : block.sublayers)
      if (const auto* const mixture = std::get_if<MixtureSpec>(&part.mixer))
        add_mixture(block, *mixture);
      else
        for (const SiteId site : part.sites) add_site(block, part, site);
  }

  std::uint64_t triangles = 0, products = 0, magnitudes = 0, rows = 0;  // numbers: of FP64, of rows FP32
  std::uint64_t searched = 0;                                           // losses that rows have by scales
  double factors = 0;                                                   // operations

 private:
  bool is_planned(const BlockSpec& block, LinearId id) const {
    return rounds_inputs_.count(block.at(id).module) != 0;
  }
  bool can_fold(const BlockSpec& block, SiteId site) const {
    return site_can_fold(*plan_.traits, block, site, [&](LinearId id) { return is_planned(block, id); });
  }

  bool rounds_inputs(const BlockSpec& block, LinearId id) const {
    const auto found = rounds_inputs_.find(block.at(id).module);
    return found != rounds_inputs_.end() && found->second;
  }
  // Where a linear that reads them, or one behind them but for the output, has rounded inputs.
  bool keeps_rows(const BlockSpec& block, const SublayerSpec& part, SiteId site) const {
    if (plan_.traits->samples_rows && !plan_.smoothquant.alpha) return true;
    return std::any_of(std::find(part.sites.begin(), part.sites.end(), site), part.sites.end(),
                       [&](SiteId id) {
                         const std::vector<LinearId>& readers = block.at(id).readers;
                         return std::any_of(readers.begin(), readers.end(), [&](LinearId reader) {
                           return rounds_inputs(block, reader) && (id == site || !part.is_output(reader));
                         });
                       });
  }

  void add_input(std::int64_t channels, bool gram, bool keeps_rows) {
    const std::uint64_t k = counted(channels);
    factors += static_cast<double>(k) * static_cast<double>(k) * static_cast<double>(k);
    if (gram) triangles += k * (k + 1) / 2;
    magnitudes += k;
    if (keeps_rows) rows += counted(RowSample::kWanted) * k;
  }

  // The search of a scale, and a look at its rows once more: in the gain as it is stored, or in the units of
  // what the producer gave.
  void add_search(const BlockSpec& block, SiteId id) {
    if (!plan_.traits->searches_by_gram || !can_fold(block, id)) return;
    const SiteSpec& site = block.at(id);
    const std::vector<std::int64_t> readers =
        planned_reader_rows(block, id, [&](LinearId reader) { return is_planned(block, reader); });
    searched += scale_search_losses(readers, plan_.awq);
    if (const auto* const made = std::get_if<LinearRows>(&site.producer))
      searched += counted(block.at(made->rows.linear).out_features);
    else
      searched += counted(std::accumulate(readers.begin(), readers.end(), std::int64_t{0}));
  }

  void add_site(const BlockSpec& block, const SublayerSpec& part, SiteId id) {
    const SiteSpec& site = block.at(id);
    const auto planned = [&](LinearId reader) { return is_planned(block, reader); };
    if (std::none_of(site.readers.begin(), site.readers.end(), planned)) return;
    add_search(block, id);
    const auto* const made = std::get_if<LinearRows>(&site.producer);
    if (made != nullptr && planned(made->rows.linear) && can_fold(block, id))
      add_input(site.channels, plan_.traits->searches_by_gram, keeps_rows(block, part, id));
    add_input(site.channels, true, keeps_rows(block, part, id));
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
    const std::vector<LinearId> linears = mixture.linears();
    const bool keeps =
        std::any_of(linears.begin(), linears.end(), [&](LinearId id) { return rounds_inputs(block, id); });
    if (reading) {
      add_search(block, mixture.input);
      for (const ExpertSpec& expert : all) add_search(block, expert.inner);
      add_input(mixture.hidden, true, keeps);
      for (const ExpertSpec& expert : all)
        if (can_fold(block, expert.inner)) add_input(block.at(expert.inner).channels, true, false);
      for (std::size_t e = 0; e < mixture.experts.size(); ++e) add_input(mixture.hidden, true, keeps);
    }
    if (giving)
      for (const ExpertSpec& expert : all) add_input(block.at(expert.inner).channels, true, keeps);
  }

  const Plan& plan_;
  std::map<std::string, bool> rounds_inputs_;  // of each planned module
};

// What rows of all planned linears become, in bytes.
struct DealtRows {
  std::uint64_t codes = 0, losses = 0;
  double operations = 0;
};

DealtRows dealt_rows(const Plan& plan) {
  DealtRows dealt;
  for (const PlannedModule& module : plan.modules) {
    const std::uint64_t out = counted(module.out_features), in = counted(module.in_features),
                        groups = counted(module.scheme.groups_of(module.in_features));
    const bool by_method = chooses_codes(*plan.traits, module.scheme);
    dealt.operations += static_cast<double>(out) * static_cast<double>(in) * static_cast<double>(in);
    if (deals_codes(plan, module.scheme)) dealt.codes += dealt_code_bytes(out, in, groups);
    // Of plain rounding, of the row itself, and while it is rounded.
    dealt.losses += (2 * out + rounding_losses(plan, module.scheme, by_method, out, groups)) * kLossBytes;
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
  if (plan.device_room) return 0;
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
    sending.made_by_parts("what rows lose", dealt.losses + sums.searched * kLossBytes);
  }
  if (const MeasuringWork measured = measuring_work(plan, spec); ranks > 1 && measured.triangles != 0) {
    sending.to_all("Gram triangles of the measured samples", measured.triangles, kPlaceBytes);
    sending.to_all("magnitudes of their inputs", measured.magnitudes, kPlaceBytes + 4);
    sending.made_by_parts("codes and scales of candidates", measured.codes);
    sending.made_by_parts("what rows lose by each candidate", measured.losses);
    sending.to_all("divergences of groups", measured.divergences, kPlaceBytes);
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
