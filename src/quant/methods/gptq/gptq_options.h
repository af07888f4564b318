// What a recipe may say of GPTQ: its keys gptq.*.
#pragma once
#include <cstdint>
#include <optional>

#include "quant/methods/gptq/column_order.h"

namespace llmq {

struct GptqOptions {
  double damp = 0.01;  // lambda / mean(diag H)
  RoundingOrder order = RoundingOrder::kGar;
  // Of a group's scale and zero: the range as it is; the least loss weighted by diag H; that, and then by
  // rounding the group with error feedback under scales around it.
  enum class ScaleSearch : std::uint8_t {
    kMinMax,
    kImportance,
    kFeedback
  } scale_search = ScaleSearch::kFeedback;
  bool full_range =
      true;  // symmetric: signed scales that put the largest weight on code 0, where they lose less
  bool refit_scales = true;  // scales and zeros again, codes frozen
  bool retry_scales = true;  // groups rounded again under scales around their own, all other groups frozen
  // Over the codes, scales frozen; each sweep refits and retries scales too. Not given: 2 where AWQ folds
  // first, 1 else, where a second one gains nothing (docs/adr/0004).
  std::optional<int> descent_sweeps;
  // Of what earlier rounding did to the residual stream: the share that o_proj and down_proj take back
  // (quant/pipeline/upstream_error.h).
  std::optional<double> upstream_share;  // not given: 0.5 where AWQ folds first (quality), 0 else (speed)
  bool operator==(const GptqOptions&) const = default;
};

}  // namespace llmq
