// The table of the kernels (kernel_table.h) from a way to run them: Way::start<Kernel> of every kernel that
// stands for itself, and Way's own functions for those that are chosen among several.
#pragma once
#include "kernels/cuda/kernel_table.h"

namespace llmq::cuda {

template <class Way>
constexpr CudaKernels filled_table() {
  return {
      .embed = Way::template start<Each<Embed>>,
      .rope = Way::template start<Each<Rope>>,
      .move_kv = Way::template start<Each<MoveKv>>,
      .causal_conv = Way::template start<Each<CausalConv>>,
      .delta_rule = Way::template start<DeltaRule>,
      .gated_activation = Way::template start<Each<GatedActivation>>,
      .activate = Way::template start<Each<Activate>>,
      .softcap = Way::template start<Each<Softcap>>,
      .add = Way::template start<Each<Add>>,
      .add_rows = Way::template start<Each<AddRows>>,
      .convert = Way::template start<Each<Convert>>,
      .channel_stats = Way::template start<Each<ChannelStats>>,
      .rms_norm = Way::template start<RmsNorm>,
      .layer_norm = Way::template start<LayerNorm>,
      .score_rows = Way::template start<ScoreRows>,
      .divergence = Way::template start<Divergence>,
      .draw_token = Way::template start<DrawToken>,
      .row_dots = Way::template start<RowDots>,
      .product = Way::template start<Product<DenseOperand>>,
      .code_product = Way::template start<Product<CodeOperand>>,
      .gram_bf16 = Way::gram,
      .drain_gram = Way::template start<Each<DrainGram>>,
      .place_square = Way::template start<Each<PlaceSquare>>,
      .take_diagonal = Way::template start<Each<TakeDiagonal>>,
      .unit_upper_panel = Way::template start<Each<UnitUpperPanel>>,
      .square_panel = Way::template start<Each<SquarePanel>>,
      .round_inputs = Way::template start<RoundInputs>,
      .round_input_groups = Way::template start<Each<RoundInputGroups>>,
      .round_input_codes = Way::template start<Each<RoundInputCodes>>,
      .sum_codes = Way::template start<Each<SumCodes>>,
      .pack_fragments = Way::template start<PackFragments>,
      .tile_round = Way::template start<TileRounding<RoundColumn>>,
      .tile_descend = Way::template start<TileRounding<DescendColumn>>,
      .tile_solve = Way::template start<TileRounding<SolveColumn>>,
      .try_scales = Way::template start<TryScales>,
      .choose_scales = Way::template start<ChooseScales>,
      .target_group = Way::template start<TargetGroup>,
      .take_group = Way::template start<TakeGroup>,
      .refit_group = Way::template start<RefitGroup>,
      .place_columns = Way::template start<PlaceColumns>,
      .write_codes = Way::template start<WriteCodes>,
      .make_differences = Way::template start<MakeDifferences>,
      .sum_input_errors = Way::template start<SumInputErrors>,
      .sum_squares = Way::template start<SumSquares>,
      .soften_rows = Way::template start<SoftenRows>,
      .share_columns = Way::template start<ShareColumns>,
      .attention = Way::template start<PlainAttention>,
      .peak_bf16 = Way::template start<PeakProducts<MatrixBFloat16>>,
      .peak_int8 = Way::template start<PeakProducts<MatrixInt8>>,
      .peak_f32 = Way::template start<PeakFloat32>,
      .read_memory = Way::template start<ReadMemory>,
      .tile_attention = Way::tile_attention,
      .tile_product = Way::tile_product,
      .linear = Way::linear,
  };
}

}  // namespace llmq::cuda
