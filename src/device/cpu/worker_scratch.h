// One growing block of memory per worker, so that hot loops allocate nothing once they have run at their
// largest size.
#pragma once
#include <cstddef>
#include <vector>

#include "tensor/buffer.h"

namespace llmq {

class WorkerScratch {
 public:
  explicit WorkerScratch(int workers) : blocks_(static_cast<std::size_t>(workers)) {}

  // At least `bytes`, aligned to 64; valid until the worker's next call. Contents are whatever was there.
  unsigned char* take(int worker, std::size_t bytes) {
    Buffer& block = blocks_[static_cast<std::size_t>(worker)];
    if (block.bytes() < bytes) {
      block.reset();
      block = Buffer(host_memory(), bytes);
    }
    return block.as<unsigned char>();
  }

 private:
  std::vector<Buffer> blocks_;
};

}  // namespace llmq
