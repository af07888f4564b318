// GPTQ of a tile of rows to floats in groups (quant/methods/float_groups.h), in host memory.
//
// As quant/methods/gptq/gptq.h has it; but the candidates for a group's scale are each tried by rounding the
// group with error feedback, w with the errors of all groups before already made good, and the one of the
// least sum_k R_kk^2 (v_k - value)^2 is kept with its codes. Columns whose groups are not runs
// (gptq.order static) have the scales that the weights alone ask for, by their importance.
//
// Cost per row of K columns in groups of g: K^2 / 2 products for what is carried, and g / 2 + a rounding for
// every weight and candidate. Nothing is fitted again afterwards.
#pragma once
#include <cstdint>
#include <vector>

#include "quant/methods/float_groups.h"
#include "quant/methods/gptq/host_rows.h"

namespace llmq {

class FloatRows {
 public:
  // `linear.input` is on the host.
  FloatRows(const GptqLinear& linear, const RoundingProblem& problem, const FloatScales& scales,
            std::int64_t first_row);

  void run();
  void write(QuantizedMatrix& matrix);

 private:
  void read_weight();
  void choose_scales();
  void carry(const ColumnBlock& block);
  template <WeightType kType>
  void round_block(const ColumnBlock& block);
  void take_candidate(const ColumnBlock& block, std::span<const float> largest, int candidate);
  template <WeightType kType>
  void try_block(const ColumnBlock& block);
  void keep_better(const ColumnBlock& block);
  bool has_runs() const { return !linear_.input.order.run_begin.empty(); }
  std::vector<float> largest_in(const ColumnBlock& block) const;

  const GptqLinear& linear_;
  const RoundingProblem& problem_;
  const FloatScales& scales_;
  std::int64_t first_row_, rows_, size_, group_, groups_;
  RowTile tile_;  // steps: numbers divided by their scale, of which the codes are the nearest
  std::vector<float> carried_;
  // Of the block at hand and the candidate: [columns, rows], and [rows].
  std::vector<float> scaled_, difference_, scale_, loss_, least_;
};

}  // namespace llmq
