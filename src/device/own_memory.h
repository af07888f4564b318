// Memory of a device beside the host's. A backend that has some is an OwnMemory too; tensors of all others
// lie in the host's.
#pragma once
#include <cstdint>

namespace llmq {

class OwnMemory {
 public:
  virtual ~OwnMemory() = default;
  virtual std::uint64_t free_bytes() const = 0;     // that buffers may take now
  virtual std::uint64_t scratch_bytes() const = 0;  // of partial results, where an operation can be cut
};

}  // namespace llmq
