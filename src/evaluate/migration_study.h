// What a move to a quantized model brings: configurations measured under the same loads, and what follows
// from the figures. No clock, no model.
//
//   gain          tokens/s with speculation over tokens/s without, at the same batch and otherwise the same
//                 configuration
//   stops paying  the least measured batch from which on no gain is above 1
//   decision      of what was measured on this hardware with no failed request, a first token (p95) within
//                 the target, and a perplexity above the baseline's by at most the tolerance (a share of the
//                 baseline's): the configuration and batch that write most tokens per second
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "evaluate/load_report.h"

namespace llmq {

struct StudyConfiguration {
  std::string name;           // "baseline", "quantized", "speculation", "prefix_cache", "all"
  std::string model, scheme;  // "w4a16_g64_sym", "bf16"
  std::string draft;          // empty: nobody guesses
  bool prefix_caching = false;
  std::string missing;  // why it was not measured; empty: it was
  std::optional<double> ppl, ppl_stderr;
  std::vector<LoadRow> rows;  // one for each batch
};

struct SpeculationGain {
  std::int64_t batch = 0;
  std::optional<double> alone, with_prefix_cache;  // over "quantized", over "prefix_cache"
};
// One for each batch at which any was measured, in the order of the rows.
std::vector<SpeculationGain> speculation_gains(std::span<const StudyConfiguration> configurations);
// Of `alone`; nothing where it still pays at the largest batch, or was not measured. Batches ascend.
std::optional<std::int64_t> speculation_stops_at(std::span<const SpeculationGain> gains);

struct DecisionTargets {
  std::vector<double> ttft_seconds{0.1, 0.3, 1, 3};
  std::vector<double> tolerances{0, 0.01, 0.05, 0.2};
};
struct Decision {
  double ttft_seconds = 0, tolerance = 0;
  const StudyConfiguration* configuration = nullptr;  // null: nothing that was measured does
  const LoadRow* row = nullptr;
};
// For every target and tolerance; the pointers are into `configurations`. The first one, if measured, is the
// baseline.
std::vector<Decision> decide(std::span<const StudyConfiguration> configurations,
                             const DecisionTargets& targets);

}  // namespace llmq
