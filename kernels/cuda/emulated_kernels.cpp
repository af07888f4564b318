// The table of the kernels as the host emulates them.
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/launch_emulated.h"
#include "kernels/cuda/start_linear.h"

namespace llmq::cuda {
namespace {

constexpr int64_t kEmulatedShared = 227 * 1024;  // of a block on sm_90

template <class Kernel>
int start(const typename Kernel::Arguments& arguments, void*) {
  emulate<Kernel>(arguments);
  return 0;
}

int emulate_tile_attention(const TileAttentionArguments& arguments, void* stream) {
  return start_tile_attention(arguments, kEmulatedShared, [&]<class Kernel>(const TileAttentionArguments& a) {
    return start<Kernel>(a, stream);
  });
}

int emulate_tile_product(const TileProductArguments& arguments, void* stream) {
  return start_tile_product(
      arguments, [&]<class Kernel>(const TileProductArguments& a) { return start<Kernel>(a, stream); });
}

int emulate_gram(const GramArguments& arguments, void* stream) {
  return start_gram(arguments, kEmulatedShared,
                    [&]<class Kernel>(const GramArguments& a) { return start<Kernel>(a, stream); });
}

int emulate_linear(WeightForm form, const LinearArguments& arguments, void* stream) {
  return start_linear(form, arguments, kEmulatedShared, [&]<class Kernel>(const LinearArguments& whole) {
    return start<Kernel>(whole, stream);
  });
}

}  // namespace

const CudaKernels& emulated_kernels() {
  static constexpr CudaKernels kernels = {
      start<Each<Embed>>,
      start<Each<Rope>>,
      start<Each<MoveKv>>,
      start<Each<GatedActivation>>,
      start<Each<Activate>>,
      start<Each<Add>>,
      start<Each<Convert>>,
      start<Each<ChannelStats>>,
      start<RmsNorm>,
      start<LayerNorm>,
      start<ScoreRows>,
      start<Divergence>,
      start<DrawToken>,
      start<RowDots>,
      start<Product<DenseOperand>>,
      start<Product<CodeOperand>>,
      emulate_gram,
      start<Each<DrainGram>>,
      start<RoundInputs>,
      start<Each<SumCodes>>,
      start<PackFragments>,
      start<TileRounding<RoundColumn>>,
      start<TileRounding<DescendColumn>>,
      start<TileRounding<SolveColumn>>,
      start<TryScales>,
      start<ChooseScales>,
      start<TargetGroup>,
      start<TakeGroup>,
      start<RefitGroup>,
      start<PlaceColumns>,
      start<WriteCodes>,
      start<MakeDifferences>,
      start<SumInputErrors>,
      start<SumSquares>,
      start<SoftenRows>,
      start<ShareColumns>,
      start<PlainAttention>,
      start<PeakProducts<MatrixBFloat16>>,
      start<PeakProducts<MatrixInt8>>,
      start<PeakFloat32>,
      start<ReadMemory>,
      emulate_tile_attention,
      emulate_tile_product,
      emulate_linear,
  };
  return kernels;
}

}  // namespace llmq::cuda
