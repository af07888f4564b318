// Memory for weights that are read from end to end for every token: huge pages, side by side.
//
// Pages of 4 KiB cost such a stream a tenth to a fifth of its bandwidth in address translation; weights one
// after another in one mapping also leave the hardware's prefetcher no gaps.
#pragma once
#include <memory>

#include "tensor/buffer.h"

namespace llmq {

// Thread-safe. A mapping goes back to the system with the last weight in it.
std::shared_ptr<MemoryResource> weight_memory();

}  // namespace llmq
