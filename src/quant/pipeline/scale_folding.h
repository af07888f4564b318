// Which channel scale moves from the producer of an input into all that read it, chosen by the run's method.
#pragma once
#include <functional>
#include <map>
#include <vector>

#include "quant/methods/scale_problem.h"
#include "quant/pipeline/block_state.h"

namespace llmq {

// Whether a scale may move at a site: the method looks for one, something produces the input that can be
// divided, and all that read it, and what makes it, are quantized.
bool site_can_fold(const MethodRow& traits, const BlockSpec& block, SiteId site,
                   const std::function<bool(LinearId)>& is_planned);

// Rows of each reader of a site that is planned.
std::vector<std::int64_t> planned_reader_rows(const BlockSpec& block, SiteId site,
                                              const std::function<bool(LinearId)>& is_planned);

class ScaleFolding {
 public:
  explicit ScaleFolding(BlockState& block) : block_(block) {}

  bool can_fold(SiteId site) const;
  bool searches_by_gram() const { return block_.run.plan.traits->searches_by_gram; }
  // Chooses s for the readers of `site` and moves it from the producer into them; empty: nothing moved.
  // `gram` of seen.stats: SmoothQuant looks for none. `share`: how much of a reader's loss counts.
  std::vector<float> fold(SiteId site, const SeenInput& seen, GramLoss* gram,
                          const std::map<LinearId, double>& share = {});

 private:
  ScaleReader reader_of(LinearId id);
  std::vector<float> awq_scales(const ScaleProblem& problem, const Fold& fold, const SiteSpec& site);
  std::vector<float> smooth_scales(const ScaleProblem& problem, const Fold& fold);

  BlockState& block_;
};

}  // namespace llmq
