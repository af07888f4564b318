#include "evaluate/migration_study.h"

#include <algorithm>

namespace llmq {
namespace {

std::optional<double> tokens_per_second(std::span<const StudyConfiguration> configurations,
                                        const std::string& name, std::int64_t batch) {
  for (const StudyConfiguration& configuration : configurations)
    if (configuration.name == name)
      for (const LoadRow& row : configuration.rows)
        if (row.clients == batch && row.result.failed == 0 && row.result.tokens_per_second > 0)
          return row.result.tokens_per_second;
  return std::nullopt;
}

std::optional<double> ratio(std::optional<double> with, std::optional<double> without) {
  return with && without ? std::optional(*with / *without) : std::nullopt;
}

bool fits(const StudyConfiguration& configuration, const LoadRow& row, double most_ppl, double ttft_seconds) {
  return configuration.ppl && *configuration.ppl <= most_ppl && row.result.failed == 0 &&
         row.result.tokens_per_second > 0 && row.result.ttft.p95 <= ttft_seconds;
}

}  // namespace

std::vector<SpeculationGain> speculation_gains(std::span<const StudyConfiguration> configurations) {
  std::vector<SpeculationGain> gains;
  for (const StudyConfiguration& configuration : configurations)
    for (const LoadRow& row : configuration.rows) {
      const std::int64_t batch = row.clients;
      if (std::any_of(gains.begin(), gains.end(),
                      [&](const SpeculationGain& gain) { return gain.batch == batch; }))
        continue;
      const auto rate = [&](const char* name) { return tokens_per_second(configurations, name, batch); };
      const SpeculationGain gain{batch, ratio(rate("speculation"), rate("quantized")),
                                 ratio(rate("all"), rate("prefix_cache"))};
      if (gain.alone || gain.with_prefix_cache) gains.push_back(gain);
    }
  return gains;
}

std::optional<std::int64_t> speculation_stops_at(std::span<const SpeculationGain> gains) {
  std::optional<std::int64_t> stops;
  for (const SpeculationGain& gain : gains) {
    if (!gain.alone) continue;
    if (*gain.alone > 1)
      stops.reset();
    else if (!stops)
      stops = gain.batch;
  }
  return stops;
}

std::vector<Decision> decide(std::span<const StudyConfiguration> configurations,
                             const DecisionTargets& targets) {
  std::vector<Decision> decisions;
  for (const double ttft : targets.ttft_seconds)
    for (const double tolerance : targets.tolerances) {
      Decision& decision = decisions.emplace_back(Decision{ttft, tolerance, nullptr, nullptr});
      if (configurations.empty() || !configurations.front().ppl) continue;
      const double most_ppl = *configurations.front().ppl * (1 + tolerance);
      for (const StudyConfiguration& configuration : configurations)
        for (const LoadRow& row : configuration.rows)
          if (fits(configuration, row, most_ppl, ttft) &&
              (!decision.row || row.result.tokens_per_second > decision.row->result.tokens_per_second)) {
            decision.configuration = &configuration;
            decision.row = &row;
          }
    }
  return decisions;
}

}  // namespace llmq
