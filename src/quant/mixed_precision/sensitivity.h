// The measuring pass of mixed precision: what each linear would cost the model with each candidate.
//
//   loss[g][b] = KL_g * ( sum_{m in g} tr(dW_mb G_m dW_mb^T) ) / ( the same at the fewest bits ),
//   dW_mb = RTN_b(W_m) - W_m
//
// Among whole schemes dW_mb is what the run's own rounding leaves, behind the scale s that AWQ would move
// into the group's readers if all had the first candidate's scheme: dW_mb = Q_b(W_m diag(s)) diag(1/s) - W_m,
// in the streams that KL_g is measured by, too. Error feedback brings integers more than it brings floats in
// groups, a scale brings 4 bits much, and FP8 gets nothing of either, so that ratios of plain rounding would
// mislead. Of one scheme's bits they change no ratio worth their time. Of a mixture's experts no scale is
// looked for, and the run adds a prior of all rows, which is not done here: an expert of fewer rows than
// channels looks better by error feedback than it will be.
//
// A candidate whose inputs are rounded to E4M3, too, loses by that as well: its sum has the expected square
// of W_m times the inputs' errors, which are independent of each other. Where it is the first, KL_g, which is
// measured with rounded weights alone, is raised by as much.
//
// KL_g is measured: the divergence of the model's predictions, on a few short samples, when group g alone is
// rounded to the fewest bits. G_m are Gram matrices of the unquantized model's activations. KL is quadratic
// in a small disturbance, so it falls with more bits as the Gram loss does and adds up over groups; at many
// bits it could not be measured beside the arithmetic's own noise, and the Gram loss can.
//
// A group is what engines run as one product: q, k and v; gate and up; o; down. Of a mixture of experts gate
// and up of all experts of a layer are one, and all their outputs: G_e is summed over the rows that the
// router sends to expert e, so that an expert counts as often as it is asked for, and losses are summed over
// the experts. One pass over the blocks; Gram matrices of experts are collected for as many at a time as the
// plan says (Plan::experts_at_once), in a pass over the samples each.
//
// Of several ranks each has chunks of the samples, joined as calibration joins them
// (calibration/joined_sums.h), and rows of each linear where codes are made by columns and where losses are
// judged, so that either is shared evenly however many ranks there are. Every rank rounds plainly, makes the
// factors of a method that has some, and adds up losses in the order of one process. Forks are dealt in turn
// over all blocks: in every block the ranks have as many streams to carry as each other, or one more, and the
// original's. Each figure is that of one process to the bit.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "base/json.h"
#include "calibration/calibration_text.h"
#include "quant/plan/plan.h"
#include "ranks/ranks.h"

namespace llmq {

// Of the divergences.
inline constexpr std::int64_t kProbeSamples = 2, kProbeLength = 128;

struct MeasuredGroup {
  std::vector<std::size_t> modules;  // places in plan.modules
  double divergence = 0;             // KL_g
  std::vector<double> gram_loss;     // of each of plan.candidates; 0 where the linear stays dense
  std::vector<double> loss;
};

// The weights of each group, at most, of a block; and how many groups a model has at most.
std::vector<std::uint64_t> group_weights(const BlockSpec& block);
std::int64_t groups_of(const ModelSpec& spec);
// Streams that a rank carries of so many forks, with the original's.
std::int64_t probe_streams(std::int64_t forks, std::int64_t ranks);

// For plan.candidates. Groups in model order, the same on every rank. `on_step` after each block; may throw.
// Error(kBadInput), RanksRefused of several ranks, where activations are not finite.
std::vector<MeasuredGroup> measure_candidates(const Plan& plan, const Checkpoint& checkpoint,
                                              const ModelSpec& spec, const CalibrationSet& calibration,
                                              Backend& backend, const std::function<void()>& on_step,
                                              Ranks& ranks = alone());

// The pass in a journal, to the last bit of every figure; nullopt for what is not a pass over `plan`.
Json measured_json(const std::vector<MeasuredGroup>& groups);  // [{modules, kl, gram_loss}]
std::optional<std::vector<MeasuredGroup>> read_measured(const Json& json, const Plan& plan);

}  // namespace llmq
