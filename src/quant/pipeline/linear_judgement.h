// What a quantized linear loses, beside plain rounding of the original weight: for the report, and so that
// what loses more gives way.
#pragma once
#include <map>
#include <vector>

#include "quant/pipeline/block_state.h"

namespace llmq {

class LinearJudgement {
 public:
  explicit LinearJudgement(BlockState& block) : block_(block) {}

  // Plain rounding of the original weights on these statistics: what the report compares with. Statistics of
  // a folded input see both through the fold's scale.
  void measure_rounding(InputWithGram& input, const std::vector<LinearId>& linears);
  // The report of one linear. Where `matrix` loses more than plain rounding of the original weight, plain
  // rounding of this one takes its place if that loses less.
  void judge(LinearWork& work, QuantizedMatrix& matrix, InputWithGram& input);
  // What 8-bit inputs cost, relative to the outputs; 0 where they stay as they are.
  double input_error(const LinearWork& work, const SeenInput& seen) const;
  // The largest input that calibration saw, or the percentile asked for, is the largest code.
  void set_input_scale(QuantizedMatrix& matrix, const SeenInput& seen, const std::string& module) const;

 private:
  double loss_of(const LinearWork& work, const QuantizedMatrix& matrix, InputWithGram& input);
  void fill_report(LinearWork& work, const QuantizedMatrix& matrix, InputWithGram& input);
  void measure(LinearWork& work, const QuantizedMatrix& matrix);
  void keep_the_better(LinearWork& work, QuantizedMatrix& matrix, InputWithGram& input);

  BlockState& block_;
  std::map<LinearId, double> energy_;  // tr(W G W^T)
};

}  // namespace llmq
