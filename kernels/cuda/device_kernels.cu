// The table of the kernels as a device runs them.
#include "kernels/cuda/filled_table.h"
#include "kernels/cuda/launch_device.h"

namespace llmq::cuda {
namespace {

struct OnDevice {
  template <class Kernel>
  static int start(const typename Kernel::Arguments& arguments, void* stream) {
    return static_cast<int>(launch<Kernel>(arguments, static_cast<cudaStream_t>(stream)));
  }
  static int tile_product(const TileProductArguments& arguments, void* stream) {
    return start_tile_product(
        arguments, [&]<class Kernel>(const TileProductArguments& a) { return start<Kernel>(a, stream); });
  }
  static constexpr auto gram = launch_gram;
  static constexpr auto tile_attention = launch_tile_attention;
  static constexpr auto linear = launch_linear;
};

}  // namespace

const CudaKernels& device_kernels() {
  static constexpr CudaKernels kernels = filled_table<OnDevice>();
  return kernels;
}

}  // namespace llmq::cuda
