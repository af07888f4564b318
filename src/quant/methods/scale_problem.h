// One scale per input channel, shared by all linears that read the input: what AWQ and SmoothQuant look for.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/zeroed_numbers.h"
#include "calibration/input_stats.h"
#include "calibration/row_sample.h"
#include "quant/methods/gram_loss.h"

namespace llmq {

struct ScaleReader {
  std::span<const float> weight;  // [out, channels]; empty: `read` gives it
  std::int64_t out_features = 0;
  QuantScheme scheme;
  double share = 1;  // of its loss that counts: an expert sees some of the rows
  // Of a weight that is not held, at each look at it.
  std::function<ZeroedNumbers<float>()> read = {};
};

template <class Visit>
void look_at(const ScaleReader& reader, const Visit& visit) {
  if (!reader.weight.empty()) return visit(reader.weight);
  const ZeroedNumbers<float> weight = reader.read();
  visit(std::span<const float>(weight));
}

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
