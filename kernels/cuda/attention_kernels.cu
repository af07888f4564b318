// The kernels of tile_attention.h as a device runs them.
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/launch_device.h"

namespace llmq::cuda {

int launch_tile_attention(const TileAttentionArguments& arguments, void* stream) {
  return start_tile_attention(arguments, most_shared(), [&]<class Kernel>(const TileAttentionArguments& a) {
    return static_cast<int>(launch<Kernel>(a, static_cast<cudaStream_t>(stream)));
  });
}

}  // namespace llmq::cuda
