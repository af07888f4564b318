// The table of the kernels as the host emulates them.
#include "kernels/cuda/filled_table.h"
#include "kernels/cuda/launch_emulated.h"
#include "kernels/cuda/start_linear.h"

namespace llmq::cuda {
namespace {

constexpr int64_t kEmulatedShared = 227 * 1024;  // of a block on sm_90

struct Emulated {
  template <class Kernel>
  static int start(const typename Kernel::Arguments& arguments, void*) {
    emulate<Kernel>(arguments);
    return 0;
  }
  static int tile_attention(const TileAttentionArguments& arguments, void* stream) {
    return start_tile_attention(
        arguments, kEmulatedShared,
        [&]<class Kernel>(const TileAttentionArguments& a) { return start<Kernel>(a, stream); });
  }
  static int tile_product(const TileProductArguments& arguments, void* stream) {
    return start_tile_product(
        arguments, [&]<class Kernel>(const TileProductArguments& a) { return start<Kernel>(a, stream); });
  }
  static int gram(const GramArguments& arguments, void* stream) {
    return start_gram(arguments, kEmulatedShared,
                      [&]<class Kernel>(const GramArguments& a) { return start<Kernel>(a, stream); });
  }
  static int linear(WeightForm form, const LinearArguments& arguments, void* stream) {
    return start_linear(form, arguments, kEmulatedShared, [&]<class Kernel>(const LinearArguments& whole) {
      return start<Kernel>(whole, stream);
    });
  }
};

}  // namespace

const CudaKernels& emulated_kernels() {
  static constexpr CudaKernels kernels = filled_table<Emulated>();
  return kernels;
}

}  // namespace llmq::cuda
