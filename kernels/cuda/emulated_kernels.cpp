// The table of the kernels as the host emulates them.
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/launch_emulated.h"

namespace llmq::cuda {
namespace {

template <class Kernel>
int start(const typename Kernel::Arguments& arguments, void*) {
  emulate<Kernel>(arguments);
  return 0;
}

}  // namespace

const CudaKernels& emulated_kernels() {
  static constexpr CudaKernels kernels = {
      start<Each<Embed>>, start<Each<Rope>>, start<Each<MoveKv>>, start<Each<GatedActivation>>, start<Each<Add>>, start<Each<Convert>>,
      start<Each<ChannelStats>>, start<RmsNorm>, start<ScoreRows>, start<Divergence>, start<RowDots>, start<Product<DenseOperand>>,
      start<Product<CodeOperand>>, start<RoundInputs>, start<MultiplyCodes>, start<PlainAttention>,
  };
  return kernels;
}

}  // namespace llmq::cuda
