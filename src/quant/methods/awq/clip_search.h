// The rounding of AWQ, which follows its scales: a clip search (unless options.clip is off), then codes. It
// sees the scaled weight and the scaled statistics.
//
// Per output row and group the range [low, high] shrinks to the pair (f low, g high) that costs least by the
// group's own diagonal block of the Gram matrix; a row keeps its clipped ranges only if the whole matrix
// agrees.
#pragma once
#include <cstdint>
#include <memory>

#include "quant/methods/awq/awq_options.h"
#include "quant/methods/method.h"
#include "quant/methods/method_options.h"

namespace llmq {

std::unique_ptr<Method> make_awq_rounding(const AwqOptions& options, Compute compute,
                                          const FloatGroupOptions& floats = {});

// How many ranges of a group are judged.
std::size_t clip_options(bool symmetric);
// What the search for one linear holds on a device: the prepared square of a group, and differences, products
// and weights of as many rows and ranges as are judged at once. Numbers of the square take `element` bytes.
std::uint64_t clip_search_device_bytes(std::int64_t out_features, std::int64_t group, bool symmetric,
                                       std::uint64_t element, std::uint64_t device_scratch);

}  // namespace llmq
