// Quantizes the experts of a mixture on the rows that the router sends to each.
//
//   gate, up   H = (n_e H_e + n0 H_all) / (n_e + n0), n0 = half the channels: mean Gram matrices of the
//              expert's own rows and of all rows of the layer, so that no expert is without a full one
//   output     of the expert's own rows behind its quantized gate and up; of all rows, sent through them,
//              where the expert has fewer of its own than the matrix has channels
//   shared     all rows, like an MLP
//
// Where inputs are rounded to 8 bits, some of these rows are kept as they are; of gate and up of a starved
// expert, some of the layer's. A static scale of gate and up is that of the layer's largest input.
//
// Where the method looks for scales in a mixture, they are moved before all that. One of the norm goes into
// gate and up of all experts, the router and the shared gate; it is judged on all rows of the layer, an
// expert's loss by its share of them: a row has top_k experts, so the experts' Gram matrices add up to top_k
// times the layer's. One of each expert goes from up into its output, judged on the rows of the output behind
// the original gate and up.
//
// Where weights multiply what experts read (MixtureSpec::weighs_input), they do so in all of these: H_e and
// the rows of an output are of weighed rows; a row that stands for any, in H_all and where all rows pass an
// expert, has the root mean square of all weights; and an expert's share of a loss is that of its squared
// weights.
//
// Router and shared gate are never quantized. Which experts are starved depends on counts alone. Sums are
// collected for as many experts at a time as the plan says (Plan::experts_at_once), in a pass over the
// samples each; no result depends on how many they are. First the scales, then gate and up of all experts,
// then all outputs: no expert reads what another gives.
//
// At last each expert's output beside the original expert's on the same rows, for the report.
#pragma once
#include <functional>

#include "quant/pipeline/activation_stream.h"
#include "quant/pipeline/block_state.h"
#include "quant/pipeline/linear_judgement.h"
#include "quant/pipeline/scale_folding.h"

namespace llmq {

// Rows of the layer that the prior of an expert's gate and up stands for.
inline std::int64_t prior_tokens(const MixtureSpec& mixture) { return (mixture.hidden + 1) / 2; }
// An expert with fewer rows than this is starved.
inline std::int64_t starved_below(const MixtureSpec& mixture) { return mixture.width; }

class MixtureQuantizer {
 public:
  using Quantize = std::function<void(LinearId id, InputWithGram& input)>;
  // `quantize` is called for each planned linear that is at work.
  MixtureQuantizer(BlockState& block, ActivationStream& stream, ScaleFolding& folding,
                   LinearJudgement& judgement, const MixtureSpec& mixture, Quantize quantize);
  // All planned linears of the mixture; then the report has what each expert got.
  void run();

 private:
  bool any_planned(ExpertInput input) const;
  void check(const InputStats& stats, SiteId site) const;
  void see_layer();
  void fold_input();
  void fold_outputs();
  // visit(expert, statistics) of these, in passes over as many as go at once.
  using Visit = std::function<void(const SeenExpert& expert, SeenInput seen)>;
  void each_seen(std::span<const SeenExpert> experts, ExpertInput input, const Visit& visit,
                 bool lent = false);
  SeenExpert seen(std::size_t expert, ExpertInput input) const;
  SeenExpert shared_expert() const { return {&*mixture_.shared, std::nullopt, stream_.tokens()}; }
  bool needs_rows() const;
  void pass_experts(ExpertInput input);
  void pass_shared(ExpertInput input);
  void quantize_readers(const ExpertSpec& expert, ExpertInput input, SeenInput seen);
  bool is_starved(std::size_t expert) const;
  std::vector<double> output_errors();
  void report(std::size_t first_module, const std::vector<double>& output_errors) const;

  BlockState& block_;
  ActivationStream& stream_;
  ScaleFolding& folding_;
  LinearJudgement& judgement_;
  const MixtureSpec& mixture_;
  Quantize quantize_;
  double mean_square() const;
  std::vector<std::int64_t> counts_;  // rows of each expert
  std::vector<double> squares_;       // of the weights that multiply them
  SeenInput all_{InputStats(1), {}};  // what gate and up read, all rows
};

}  // namespace llmq
