#include "quant/pipeline/scale_folding.h"

#include <algorithm>

#include "device/named_range.h"
#include "quant/methods/awq/scale_search.h"
#include "quant/methods/smoothquant/smooth_loss.h"
#include "quant/methods/smoothquant/smoothquant.h"

namespace llmq {

bool site_can_fold(const MethodRow& traits, const BlockSpec& block, SiteId id,
                   const std::function<bool(LinearId)>& is_planned) {
  const SiteSpec& site = block.at(id);
  if (!traits.folds || std::holds_alternative<std::monostate>(site.producer)) return false;
  if (traits.searches_by_gram ? !site.searched : !site.smoothed) return false;
  const auto* const rows = std::get_if<LinearRows>(&site.producer);
  return std::any_of(site.readers.begin(), site.readers.end(), is_planned) &&
         std::all_of(site.readers.begin(), site.readers.end(),
                     [&](LinearId reader) { return is_planned(reader) || !block.at(reader).quantizable; }) &&
         (rows == nullptr || is_planned(rows->rows.linear));
}

std::vector<std::int64_t> planned_reader_rows(const BlockSpec& block, SiteId site,
                                              const std::function<bool(LinearId)>& is_planned) {
  std::vector<std::int64_t> rows;
  for (const LinearId reader : block.at(site).readers)
    if (is_planned(reader)) rows.push_back(block.at(reader).out_features);
  return rows;
}

bool ScaleFolding::can_fold(SiteId id) const {
  return site_can_fold(*block_.run.plan.traits, block_.spec, id,
                       [&](LinearId reader) { return block_.is_planned(reader); });
}

// One that is at work is held; the others are read at each look.
ScaleReader ScaleFolding::reader_of(LinearId id) {
  const LinearSpec& linear = block_.spec.at(id);
  ScaleReader reader;
  reader.out_features = linear.out_features;
  reader.scheme = block_.run.planned.at(linear.module)->scheme;
  if (const auto work = block_.works.find(id); work != block_.works.end())
    reader.weight = work->second.original();
  else
    reader.read = [&run = block_.run, &linear] { return load_planned_weight(run, linear); };
  return reader;
}

std::vector<float> ScaleFolding::fold(SiteId id, const SeenInput& seen, GramLoss* gram,
                                      const std::map<LinearId, double>& share) {
  if (!can_fold(id)) return {};
  QuantizeRun& run = block_.run;
  const SiteSpec& site = block_.spec.at(id);
  const NamedRange range(run.backend, fmt::format("{} scale search", site.name));
  const Fold fold(run, block_.spec, site);
  ScaleProblem problem;
  for (const LinearId reader : site.readers) {
    if (!block_.is_planned(reader)) continue;
    problem.readers.push_back(reader_of(reader));
    if (const auto own = share.find(reader); own != share.end()) problem.readers.back().share = own->second;
  }
  problem.stats = &seen.stats;
  problem.rows = &seen.rows;
  problem.gram = gram;
  problem.compute = run.plan.compute;
  problem.producer_of = tied_channels(site);
  std::vector<float> s = searches_by_gram() ? awq_scales(problem, fold, site) : smooth_scales(problem, fold);
  run.clock.charge("scale search");
  if (s.empty()) return s;
  fold.move(s, block_.works, block_.weights);
  block_.moved[id] = s;
  return s;
}

std::vector<float> ScaleFolding::awq_scales(const ScaleProblem& problem, const Fold& fold,
                                            const SiteSpec& site) {
  QuantizeRun& run = block_.run;
  AwqScales found = search_awq_scales(problem, run.plan.awq, run.backend);
  if (found.identity) return {};
  if (!std::holds_alternative<NormGain>(site.producer)) return std::move(found.s);
  found.s = fold.storable(std::move(found.s));
  if (awq_scale_loss(problem, found.s, run.backend) < found.identity_loss) return std::move(found.s);
  for (const LinearId reader : site.readers)
    if (block_.is_planned(reader))
      run.report.fallbacks.push_back(
          {block_.spec.at(reader).module,
           "the chosen scale loses more than plain rounding once the norm's gain is stored"});
  return {};
}

std::vector<float> ScaleFolding::smooth_scales(const ScaleProblem& problem, const Fold& fold) {
  SmoothScales found = search_smooth_scales(problem, block_.run.plan.smoothquant, block_.run.backend);
  if (found.identity) return {};
  return fold.storable(std::move(found.s));
}

}  // namespace llmq
