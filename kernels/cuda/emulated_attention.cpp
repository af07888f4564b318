// The kernels of tile_attention.h as the host emulates them.
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/launch_emulated.h"

namespace llmq::cuda {

int emulate_tile_attention(const TileAttentionArguments& arguments, void*) {
  return start_tile_attention(arguments, kEmulatedShared, [&]<class Kernel>(const TileAttentionArguments& a) {
    emulate<Kernel>(a);
    return 0;
  });
}

}  // namespace llmq::cuda
