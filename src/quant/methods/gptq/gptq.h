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
// Floats in groups: quant/methods/gptq/float_rows.h.
//
// A column that no input ever uses (diag H = 0) gets the code zero. With fewer tokens than channels damp
// grows by channels / tokens: H then says nothing about many directions.
//
// Cost per row of K columns: K^2 products for the rounding, 2 K^2 for each sweep of the descent.
#pragma once
#include <memory>

#include "quant/methods/gptq/gptq_options.h"
#include "quant/methods/method.h"
#include "quant/methods/method_options.h"

namespace llmq {

// `compute` is of the loss it reports.
std::unique_ptr<Method> make_gptq(const GptqOptions& options, Compute compute,
                                  const FloatGroupOptions& floats = {});

}  // namespace llmq
