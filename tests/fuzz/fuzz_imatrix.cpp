// Any bytes as an importance matrix: either an Error, or entries whose importance is a finite number for each
// input.
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "io/imatrix.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const llmq::Imatrix imatrix =
        llmq::parse_imatrix({reinterpret_cast<const std::byte*>(data), size}, "imatrix");
    if (imatrix.entries.empty()) std::abort();
    for (const auto& [name, entry] : imatrix.entries) {
      const std::vector<float> importance = imatrix.importance(name);
      if (importance.size() != entry.sums.size()) std::abort();
      for (const float value : importance)
        if (!(value >= 0)) std::abort();
    }
  } catch (const llmq::Error&) {
  }
  return 0;
}
