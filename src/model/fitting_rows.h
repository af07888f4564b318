// Rows of a stage in parts, as RowChunks cuts them, or smaller ones where the device runs out of memory in
// the middle: the part that failed is halved and tried again, and smaller stays smaller. By row invariance no
// result depends on it (docs/adr/0013).
//
// So that a part can be tried again, it changes what it also reads (the residual stream) only after
// everything it allocates.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "base/error.h"
#include "model/row_chunks.h"

namespace llmq {

// What one device turned out to have memory for. Not from two threads at once.
class FittingRows {
 public:
  // fewer save little of what a stage holds, and read the weights as often
  static constexpr std::int64_t kFewest = 16;

  std::int64_t most() const { return most_; }
  // `rows` were too many, as `error` says: half of them from now on. Throws `error`, with what would do,
  // where they were the fewest.
  void halve(std::int64_t rows, const Error& error);
  // most(), where it has fallen since this was asked last.
  std::optional<std::int64_t> news();

 private:
  static constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
  std::int64_t most_ = kAll, told_ = kAll;
};

// for_row_chunks(); where `fitting` is null, an allocation that fails ends the work.
template <typename Work>
void for_fitting_rows(const RowChunks& limits, FittingRows* fitting, std::int64_t rows,
                      std::int64_t row_floats, const Work& work) {
  const std::int64_t chunk = rows_at_once(limits, row_floats);
  for (std::int64_t first = 0; first < rows;) {
    const std::int64_t count = std::min({chunk, fitting == nullptr ? chunk : fitting->most(), rows - first});
    try {
      work(first, count);
      first += count;
    } catch (const Error& error) {
      if (fitting == nullptr || error.kind() != ErrorKind::kResource) throw;
      fitting->halve(count, error);
    }
  }
}

}  // namespace llmq
