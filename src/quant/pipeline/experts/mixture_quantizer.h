// Quantizes the experts of a mixture on the rows that the router sends to each.
//
//   gate, up   H = (n_e H_e + n0 H_all) / (n_e + n0), n0 = half the channels: mean Gram matrices of the
//              expert's own rows and of all rows of the layer, so that no expert is without a full one
//   output     of the expert's own rows behind its quantized gate and up; of all rows, sent through them,
//              where the expert has fewer of its own than the matrix has channels
//   shared     all rows, like an MLP
//
// Router and shared gate stay as they are. Which experts are starved depends on counts alone. Sums are
// collected for as many experts at a time as the plan says (Plan::experts_at_once), in a pass over the
// samples each; no result depends on how many they are. First gate and up of all experts, then all outputs:
// no expert reads what another gives.
#pragma once
#include <functional>

#include "quant/pipeline/activation_stream.h"
#include "quant/pipeline/block_state.h"
#include "quant/pipeline/linear_judgement.h"

namespace llmq {

// Rows of the layer that the prior of an expert's gate and up stands for.
inline std::int64_t prior_tokens(const MixtureSpec& mixture) { return (mixture.hidden + 1) / 2; }
// An expert with fewer rows than this is starved.
inline std::int64_t starved_below(const MixtureSpec& mixture) { return mixture.width; }

class MixtureQuantizer {
 public:
  using Quantize = std::function<void(LinearId id, InputWithGram& input)>;
  // `quantize` is called for each planned linear that is at work.
  MixtureQuantizer(BlockState& block, ActivationStream& stream, LinearJudgement& judgement,
                   const MixtureSpec& mixture, Quantize quantize);
  // All planned linears of the mixture; then the report has what each expert got.
  void run();

 private:
  bool any_planned(ExpertInput input) const;
  void pass_experts(ExpertInput input);
  void pass_shared(ExpertInput input);
  void quantize_readers(const ExpertSpec& expert, ExpertInput input, InputStats stats);
  bool is_starved(std::size_t expert) const;
  void report(std::size_t first_module) const;

  BlockState& block_;
  ActivationStream& stream_;
  LinearJudgement& judgement_;
  const MixtureSpec& mixture_;
  Quantize quantize_;
  std::vector<std::int64_t> counts_;  // rows of each expert
  InputStats all_{1};                 // of what gate and up read, all rows
};

}  // namespace llmq
