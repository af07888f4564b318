// The stages of a mixture of experts that calibration looks into: which rows go to which expert, those rows,
// and what an expert makes of them before its output linear. The forward pass runs the same functions.
#pragma once
#include <cstdint>
#include <span>

#include "model/block_weights.h"
#include "model/mixers/routing.h"

namespace llmq {

// Rows in memory of their own on the backend's device.
struct PlacedRows {
  Buffer buffer;
  TensorView view;
};

// Which rows of x [T, hidden] go to which expert; h F32: the residual stream of the same rows, which some
// routers read.
RoutedRows route_rows(Backend& backend, const BlockSpec& block, const BlockWeights& weights,
                      const MixtureSpec& spec, const TensorView& x, const TensorView& h);
// These rows of x, one behind another, of its type.
PlacedRows rows_of(Backend& backend, const TensorView& x, std::span<const std::int32_t> rows);
// Each of them times a number, rounded once to the type of x.
PlacedRows scaled_rows_of(Backend& backend, const TensorView& x, std::span<const std::int32_t> rows,
                          std::span<const float> factors);
// What an expert reads of its rows: times their weights, where those weigh the input.
PlacedRows routed_rows_of(Backend& backend, const MixtureSpec& spec, const TensorView& x,
                          std::span<const std::int32_t> rows, std::span<const float> weights);
// act(gate(x)) * up(x), of x's type: rows [first[e], first[e + 1]) of x are those of experts[e], all of one
// width. The linears of all experts are one call.
PlacedRows inner_rows(Backend& backend, const BlockWeights& weights, std::span<const ExpertSpec> experts,
                      std::span<const std::size_t> first, Activation activation, const TensorView& x);

}  // namespace llmq
