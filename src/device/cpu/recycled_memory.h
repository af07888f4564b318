// Host memory that keeps freed blocks for the next request of about the same size.
//
// A forward pass asks for the same few megabytes in every decoder block; fresh pages from the system would
// cost a fault and a clearing for each 4 KiB of them.
#pragma once
#include <cstddef>
#include <memory>

#include "tensor/buffer.h"

namespace llmq {

// Keeps at most `kept_bytes` of freed blocks, and up to 2 MiB of small ones; thread-safe; contents of a block
// are whatever was there.
std::shared_ptr<MemoryResource> recycled_memory(std::size_t kept_bytes);

}  // namespace llmq
