// Runs a kernel of kernels/cuda/block.h on the host, block after block. Arguments point to host memory.
//
// Blocks run last to first: one that needs what an earlier block wrote is wrong here, too. EmulationFault
// where the kernel has a race, reads what nobody wrote or leaves a copy behind.
#pragma once
#include <memory>

#include "kernels/cuda/block.h"

namespace llmq::cuda {

inline constexpr int64_t kEmulatedShared = 227 * 1024;  // of a block, as on sm_90

template <class Kernel>
void emulate(const typename Kernel::Arguments& arguments) {
  const Grid grid = Kernel::grid(arguments);
  if (grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535)
    throw EmulationFault("more blocks than a device starts");
  block_progress() = {};
  const auto shared = std::make_unique<typename Kernel::Shared>();
  for (int z = grid.z; z-- > 0;)
    for (int y = grid.y; y-- > 0;)
      for (int64_t x = grid.x; x-- > 0;) {
        block_progress().begin_block();
        Block<Kernel::kThreads> block;
        block.x = static_cast<int>(x), block.y = y, block.z = z;
        Kernel::run(block, arguments, *shared);
        for (const auto& group : block_progress().copies)
          if (!group.empty()) throw EmulationFault("copies were not waited for");
        if (!block_progress().open_copies.empty()) throw EmulationFault("copies were not committed");
      }
}

}  // namespace llmq::cuda
