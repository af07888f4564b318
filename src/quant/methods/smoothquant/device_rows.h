// quant/methods/smoothquant/sampled_rows.h on a device: sampled rows of inputs and weights go up once for a
// search; s goes up and a number for each row comes down for a loss, a factor up and a number for each row
// and channel down for a gradient.
//
// Cost of a call on R rows of K channels: O(R K) there. Memory there: 4 K (inputs + 2 weights) bytes and some
// K doubles (device_smooth_bytes()).
#pragma once
#include <cstdint>
#include <memory>

#include "quant/methods/smoothquant/sampled_rows.h"

namespace llmq {

// Null where the backend is none that does this; Error(kResource) where its memory has no room.
std::unique_ptr<SmoothRows> make_device_smooth_rows(const SmoothProblem& problem, Backend& backend);

struct SmoothSizes {
  // `inputs` and `weights` count rows, `groups` the steps of a row of inputs.
  std::uint64_t inputs = 0, weights = 0, channels = 0, groups = 0;
};
std::uint64_t device_smooth_bytes(const SmoothSizes& sizes);

}  // namespace llmq
