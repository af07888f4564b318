// GPTQ (Frantar et al. 2022) in its LDLQ form, with scales that fit what is rounded.
//
// Columns are rounded one after another, in the order chosen (quant/methods/gptq/column_order.h); what a
// column loses is made good by those after it:
//
//   v_k = w_k + sum_{j<k} D_j L_jk,   code_k = round(v_k / scale) + zero,   D = W - value(code)
//
// with H + lambda I = R R^T, L = R diag(1/R_kk) (quant/methods/gptq/factorization.h). The codes are those of
// the textbook, which updates all later columns by the inverse. Scales of a group are chosen when its first
// column comes, from the weights as they are then. Afterwards each group's scale, zero and codes are fitted
// again while everything else stands (quant/methods/gptq/coordinate_descent.h).
//
// A column that no input ever uses (diag H = 0) gets the code zero. With fewer tokens than channels damp
// grows by channels / tokens: H then says nothing about many directions.
//
// Cost per row of K columns: K^2 products for the rounding, 2 K^2 for each sweep of the descent.
#pragma once
#include <memory>
#include <optional>

#include "quant/methods/gptq/column_order.h"
#include "quant/methods/method.h"

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

// `compute` is of the loss it reports.
std::unique_ptr<Method> make_gptq(const GptqOptions& options, Compute compute);

}  // namespace llmq
