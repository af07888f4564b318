// The moments of a run that collects the importance of inputs (`method: imatrix`): a block as it is, and the
// sums of the experts' own rows where it has experts.
#include <algorithm>

#include "quant/plan/peak_memory.h"

namespace llmq {

std::vector<std::vector<MemoryItem>> PeakMemory::importance() const {
  std::vector<std::vector<MemoryItem>> moments;
  for (const BlockSpec& block : spec_.blocks) {
    std::uint64_t weights = 0, largest = 0;
    for (const LinearSpec& linear : block.linears) {
      weights += weights_of(linear);
      largest = std::max(largest, weights_of(linear));
    }
    const MixtureSpec* const mixture = block.mixture();
    const std::uint64_t routed =
        mixture == nullptr ? 0
                           : expert_rows(*mixture) + mixture->experts.size() *
                                                         positive(std::max(mixture->hidden, mixture->width)) *
                                                         sizeof(double);
    const std::vector<MemoryItem> always = {{"program while it computes", kComputingBytes},
                                            {"activations of all samples and of one chunk", stream()},
                                            {"a block as prepared", weights * element_},
                                            {"stage buffers, and rows of experts", stages() + routed}};
    for (const MemoryItem& item :
         {MemoryItem{"one linear in FP32", largest * 4},
          MemoryItem{"one chunk of inputs, to be squared", chunk_ * wide() * element_}}) {
      moments.push_back(with_base(always));
      moments.back().push_back(item);
    }
  }
  return moments;
}

}  // namespace llmq
