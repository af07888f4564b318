#include "quant/plan/ranks/rank_time.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace llmq {
namespace {

double share_of(std::int64_t units, int ranks) {
  const std::int64_t most = (units + ranks - 1) / ranks;
  return static_cast<double>(most) / static_cast<double>(std::max<std::int64_t>(units, 1));
}

template <std::size_t N>
bool is_one_of(const std::string& part, const std::array<std::string_view, N>& names) {
  return std::find(names.begin(), names.end(), part) != names.end();
}

}  // namespace

double RankShares::of_part(const std::string& part, int ranks) const {
  if (one_file) {
    if (part == "importance") return share_of(chunks, ranks);
    return part == "rounding" ? 1.0 / ranks : 1;
  }
  if (part == kMeasuringPart)
    return measured_by_samples * share_of(measured_chunks, ranks) + measured_dealt / ranks +
           (1 - measured_by_samples - measured_dealt);
  if (chunks == 0 || is_one_of(part, std::array<std::string_view, 2>{"writing", "dense tensors"}))
    return share_of(shards, ranks);
  if (part == "rounding") return 1 - dealt_rounding + dealt_rounding / ranks;
  const bool shared =
      is_one_of(part, std::array<std::string_view, 6>{"forward", "forward and statistics", "original forward",
                                                      "upstream error", "scale search", "losses"});
  return shared ? share_of(chunks, ranks) : 1;
}

std::int64_t RankShares::most_ranks() const {
  if (one_file) return INT32_MAX;
  if (chunks != 0) return chunks;
  return measured_chunks == 0 ? shards : sample_chunks;
}

double shared_seconds(const SecondsByPart& parts, const RankShares& shares, int ranks) {
  double seconds = 0;
  for (const auto& [part, found] : parts) seconds += found * shares.of_part(part, ranks);
  return seconds;
}

std::vector<int> counts_of_nodes(int most) {
  std::vector<int> counts;
  for (int nodes = 1; nodes < most; nodes *= 2) counts.push_back(nodes);
  counts.push_back(most);
  return counts;
}

int paying_nodes(const std::vector<NodeCount>& rising) {
  int paying = rising.front().nodes;
  for (std::size_t i = 1; i < rising.size(); ++i) {
    const double doublings = std::log2(static_cast<double>(rising[i].nodes) /
                                       static_cast<double>(rising[i - 1].nodes)),
                 saved = 1 - rising[i].seconds / rising[i - 1].seconds;
    if (!(saved >= kPayingShare * doublings)) break;
    paying = rising[i].nodes;
  }
  return paying;
}

}  // namespace llmq
