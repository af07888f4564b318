// The table of the kernels as the host emulates them.
#include "kernels/cuda/filled_table.h"
#include "kernels/cuda/launch_emulated.h"

namespace llmq::cuda {
namespace {

struct Emulated {
  template <class Kernel>
  static int start(const typename Kernel::Arguments& arguments, void*) {
    emulate<Kernel>(arguments);
    return 0;
  }
  static int tile_product(const TileProductArguments& arguments, void* stream) {
    return start_tile_product(
        arguments, [&]<class Kernel>(const TileProductArguments& a) { return start<Kernel>(a, stream); });
  }
  static constexpr auto gram = emulate_gram;
  static constexpr auto tile_attention = emulate_tile_attention;
  static constexpr auto linear = emulate_linear;
};

}  // namespace

const CudaKernels& emulated_kernels() {
  static constexpr CudaKernels kernels = filled_table<Emulated>();
  return kernels;
}

}  // namespace llmq::cuda
