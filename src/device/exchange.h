// Tensors between backends, each of which has a memory of its own, in the order of the calls: from device to
// device where one reaches the other (Backend::copy_from), else by way of the host. Bytes are moved, nothing
// is summed. Cost of gather(): a copy for each part and backend; by the host every part down once and the
// whole up once for each backend.
#pragma once
#include <span>
#include <vector>

#include "device/backend.h"

namespace llmq {

class Exchange {
 public:
  // `to` is what `from` is; same dtype and shape, both contiguous.
  void copy(Backend& from_backend, const TensorView& from, Backend& to_backend, const TensorView& to);
  // Every wholes[i] [T, sum of the parts' columns] on backends[i] is parts[0], parts[1], ... side by side,
  // parts[i] [T, columns] being on backends[i]; all contiguous.
  void gather(std::span<Backend* const> backends, std::span<const TensorView> parts,
              std::span<const TensorView> wholes);

 private:
  void gather_on_host(std::span<Backend* const> backends, std::span<const TensorView> parts,
                      std::span<const TensorView> wholes);
  std::vector<std::byte> whole_, part_;
};

}  // namespace llmq
