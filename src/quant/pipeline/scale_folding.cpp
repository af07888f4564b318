#include "quant/pipeline/scale_folding.h"

#include <algorithm>

#include "device/named_range.h"
#include "quant/methods/awq/scale_search.h"
#include "quant/methods/smoothquant/smooth_loss.h"
#include "quant/methods/smoothquant/smoothquant.h"

namespace llmq {

bool ScaleFolding::can_fold(SiteId id) const {
  const SiteSpec& site = block_.spec.at(id);
  if (!block_.run.plan.traits->folds || std::holds_alternative<std::monostate>(site.producer)) return false;
  if (searches_by_gram() && !site.searched) return false;
  const auto* const rows = std::get_if<LinearRows>(&site.producer);
  const auto is_planned = [&](LinearId reader) { return block_.is_planned(reader); };
  return std::any_of(site.readers.begin(), site.readers.end(), is_planned) &&
         std::all_of(
             site.readers.begin(), site.readers.end(),
             [&](LinearId reader) { return is_planned(reader) || !block_.spec.at(reader).quantizable; }) &&
         (rows == nullptr || block_.is_planned(rows->rows.linear));
}

std::vector<float> ScaleFolding::fold(SiteId id, const SeenInput& seen, GramLoss* gram) {
  if (!can_fold(id)) return {};
  QuantizeRun& run = block_.run;
  const SiteSpec& site = block_.spec.at(id);
  const NamedRange range(run.backend, fmt::format("{} scale search", site.name));
  const Fold fold(run, block_.spec, site);
  ScaleProblem problem;
  for (const LinearId reader : block_.at_work(id)) {
    const LinearWork& work = block_.works.at(reader);
    problem.readers.push_back({work.original(), work.spec->out_features, work.module->scheme});
  }
  problem.stats = &seen.stats;
  problem.rows = &seen.rows;
  problem.gram = gram;
  problem.compute = run.plan.compute;
  problem.producer_of = fold.producer_rows();
  std::vector<float> s = searches_by_gram() ? awq_scales(problem, fold, site) : smooth_scales(problem, fold);
  run.clock.charge("scale search");
  if (!s.empty()) fold.move(s, block_.works, block_.weights);
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
  for (const LinearId reader : site.readers) {
    const auto work = block_.works.find(reader);
    if (work == block_.works.end()) continue;  // it is never quantized
    run.report.fallbacks.push_back(
        {work->second.module->module,
         "the chosen scale loses more than plain rounding once the norm's gain is stored"});
  }
  return {};
}

std::vector<float> ScaleFolding::smooth_scales(const ScaleProblem& problem, const Fold& fold) {
  SmoothScales found = search_smooth_scales(problem, block_.run.plan.smoothquant, block_.run.backend);
  if (found.identity) return {};
  return fold.storable(std::move(found.s));
}

}  // namespace llmq
