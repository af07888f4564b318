// The kernels of a CUDA device as a table of launches: src/device/cuda calls them and does not see how they
// run.
//
// launch(arguments, stream) starts all blocks of the kernel on that stream (of type cudaStream_t) and returns
// the CUDA error's number, 0 where the launch was accepted. Pointers are the device's. The emulated table
// runs the same bodies on host memory, at once, for tests.
#pragma once
#include "kernels/cuda/attention.h"
#include "kernels/cuda/draw_token.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/gram_bf16.h"
#include "kernels/cuda/gram_panels.h"
#include "kernels/cuda/group_search.h"
#include "kernels/cuda/kv_pages.h"
#include "kernels/cuda/linear_arguments.h"
#include "kernels/cuda/pack_fragments.h"
#include "kernels/cuda/peak.h"
#include "kernels/cuda/placed_columns.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/recurrence.h"
#include "kernels/cuda/round_inputs.h"
#include "kernels/cuda/row_differences.h"
#include "kernels/cuda/row_sums.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/tile_attention.h"
#include "kernels/cuda/tile_product.h"
#include "kernels/cuda/tile_rounding.h"

namespace llmq::cuda {

template <class Kernel>
using Launch = int (*)(const typename Kernel::Arguments& arguments, void* stream);

struct CudaKernels {
  Launch<Each<Embed>> embed;
  Launch<Each<Rope>> rope;
  Launch<Each<MoveKv>> move_kv;
  Launch<Each<CausalConv>> causal_conv;
  Launch<DeltaRule> delta_rule;
  Launch<Each<GatedActivation>> gated_activation;
  Launch<Each<Activate>> activate;
  Launch<Each<Softcap>> softcap;
  Launch<Each<Add>> add;
  Launch<Each<AddRows>> add_rows;
  Launch<Each<Convert>> convert;
  Launch<Each<ChannelStats>> channel_stats;
  Launch<RmsNorm> rms_norm;
  Launch<LayerNorm> layer_norm;
  Launch<ScoreRows> score_rows;
  Launch<Divergence> divergence;
  Launch<DrawToken> draw_token;
  Launch<RowDots> row_dots;
  Launch<Product<DenseOperand>> product;
  Launch<Product<CodeOperand>> code_product;
  int (*gram_bf16)(const GramArguments& arguments, void* stream);  // gram_bf16.h
  Launch<Each<DrainGram>> drain_gram;
  Launch<Each<PlaceSquare>> place_square;
  Launch<Each<TakeDiagonal>> take_diagonal;
  Launch<Each<UnitUpperPanel>> unit_upper_panel;
  Launch<Each<SquarePanel>> square_panel;
  Launch<RoundInputs> round_inputs;
  Launch<Each<RoundInputGroups>> round_input_groups;
  Launch<Each<RoundInputCodes>> round_input_codes;
  Launch<Each<SumCodes>> sum_codes;
  Launch<PackFragments> pack_fragments;
  Launch<TileRounding<RoundColumn>> tile_round;
  Launch<TileRounding<DescendColumn>> tile_descend;
  Launch<TileRounding<SolveColumn>> tile_solve;
  Launch<TryScales> try_scales;
  Launch<ChooseScales> choose_scales;
  Launch<TargetGroup> target_group;
  Launch<TakeGroup> take_group;
  Launch<RefitGroup> refit_group;
  Launch<PlaceColumns> place_columns;
  Launch<WriteCodes> write_codes;
  Launch<MakeDifferences> make_differences;
  Launch<SumInputErrors> sum_input_errors;
  Launch<SumSquares> sum_squares;
  Launch<SoftenRows> soften_rows;
  Launch<ShareColumns> share_columns;
  Launch<PlainAttention> attention;
  Launch<PeakProducts<MatrixBFloat16>> peak_bf16;
  Launch<PeakProducts<MatrixInt8>> peak_int8;
  Launch<PeakFloat32> peak_f32;
  Launch<ReadMemory> read_memory;
  // tile_attention.h, both kernels
  int (*tile_attention)(const TileAttentionArguments& arguments, void* stream);
  int (*tile_product)(const TileProductArguments& arguments, void* stream);        // tile_product.h
  int (*linear)(WeightForm form, const LinearArguments& arguments, void* stream);  // linear.h
};

int launch_tile_attention(const TileAttentionArguments& arguments, void* stream);    // attention_kernels.cu
int launch_gram(const GramArguments& arguments, void* stream);                       // linear_kernels.cu
int launch_linear(WeightForm form, const LinearArguments& arguments, void* stream);  // linear_kernels.cu
int emulate_tile_attention(const TileAttentionArguments& arguments, void* stream);   // emulated_attention.cpp
int emulate_gram(const GramArguments& arguments, void* stream);                      // emulated_linear.cpp
int emulate_linear(WeightForm form, const LinearArguments& arguments, void* stream);  // emulated_linear.cpp
const CudaKernels& device_kernels();                                                  // built where nvcc is
const CudaKernels& emulated_kernels();  // built for tests (LLMQ_EMULATION)

}  // namespace llmq::cuda
