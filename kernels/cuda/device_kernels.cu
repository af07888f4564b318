// The table of the kernels as a device runs them.
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/launch_device.h"

namespace llmq::cuda {
namespace {

template <class Kernel>
int start(const typename Kernel::Arguments& arguments, void* stream) {
  return static_cast<int>(launch<Kernel>(arguments, static_cast<cudaStream_t>(stream)));
}

int launch_tile_product(const TileProductArguments& arguments, void* stream) {
  return start_tile_product(
      arguments, [&]<class Kernel>(const TileProductArguments& a) { return start<Kernel>(a, stream); });
}

}  // namespace

const CudaKernels& device_kernels() {
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
      launch_gram,
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
      launch_tile_attention,
      launch_tile_product,
      launch_linear,
  };
  return kernels;
}

}  // namespace llmq::cuda
