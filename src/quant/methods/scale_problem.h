// One scale per input channel, shared by all linears that read the input: what AWQ and SmoothQuant look for.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "calibration/input_stats.h"
#include "calibration/row_sample.h"
#include "quant/methods/gram_loss.h"

namespace llmq {

struct ScaleReader {
  std::span<const float> weight;  // [out, channels]
  std::int64_t out_features = 0;
  QuantScheme scheme;
};

struct ScaleProblem {
  std::vector<ScaleReader> readers;
  const InputStats* stats = nullptr;
  const RowSample* rows = nullptr;  // of the same input; needed where activations are rounded
  // Of each channel: channels of one producer share s (v -> o under GQA). Empty: one each.
  std::vector<std::int32_t> producer_of;
  GramLoss* gram = nullptr;  // of `stats`; null: made where needed
  Compute compute = Compute::kBFloat16;
};

}  // namespace llmq
