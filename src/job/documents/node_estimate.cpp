#include "job/documents/node_estimate.h"

#include <algorithm>

#include "base/amount_text.h"

namespace llmq {
namespace {

std::string units_text(const RankShares& shares) {
  return shares.goes_over_samples() ? fmt::format("{} chunks of samples", shares.most_ranks())
                                    : fmt::format("{} shards of the output", shares.shards);
}

}  // namespace

NodeEstimate estimate_nodes(QuantizeJob& job, const std::string& model, int most, double bytes_per_second) {
  const PlanOutline outline = job.form().outline();
  const JobPreview preview = job.preview();
  NodeEstimate found{model,
                     outline.method,
                     outline.scheme,
                     outline.format,
                     bytes_per_second,
                     job.form().shares(),
                     preview.time.parts,
                     preview.time.unknown,
                     {},
                     1};
  const auto useful = static_cast<int>(std::min<std::int64_t>(most, found.shares.most_ranks()));
  for (const int nodes : counts_of_nodes(useful)) {
    const RankCosts costs = job.form().over_ranks(nodes);
    NodeCount count;
    count.nodes = nodes;
    count.network_seconds = costs.traffic.seconds(bytes_per_second);
    if (found.unknown.empty())
      count.seconds = shared_seconds(found.parts, found.shares, nodes) + count.network_seconds;
    count.traffic_bytes = costs.traffic.bytes();
    count.peak_bytes = costs.peak_bytes;
    found.nodes.push_back(count);
  }
  if (found.unknown.empty()) found.paying = paying_nodes(found.nodes);
  return found;
}

std::string NodeEstimate::said() const {
  const int last = nodes.back().nodes;
  if (!unknown.empty())
    return fmt::format(
        "no time is predicted here ({}), so this is what nodes send and hold, and not where adding "
        "them stops paying",
        unknown);
  if (paying < last) {
    const auto at = [&](int count) {
      return *std::find_if(nodes.begin(), nodes.end(), [&](const NodeCount& n) { return n.nodes == count; });
    };
    const auto next =
        *std::find_if(nodes.begin(), nodes.end(), [&](const NodeCount& n) { return n.nodes > paying; });
    return fmt::format(
        "adding nodes stops paying at {}: {} of them save {:.0f} % of the {}, and a doubling "
        "pays where it saves {:.0f} %",
        paying, next.nodes, 100 * (1 - next.seconds / at(paying).seconds), seconds_text(at(paying).seconds),
        100 * kPayingShare);
  }
  if (last == shares.most_ranks())
    return fmt::format("nodes pay up to {}: there are {}, and more nodes have nothing to do", last,
                       units_text(shares));
  return fmt::format("every step up to {} nodes pays: a doubling saves at least {:.0f} % of the time", last,
                     100 * kPayingShare);
}

Json NodeEstimate::to_json() const {
  Json of_one = Json::object(), counts = Json::array();
  for (const auto& [part, seconds] : parts) of_one[part] = Json(seconds);
  for (const NodeCount& count : nodes)
    counts.push_back(Json::object({{"nodes", count.nodes},
                                   {"seconds", unknown.empty() ? Json(count.seconds) : Json()},
                                   {"network_seconds", count.network_seconds},
                                   {"traffic_bytes", Json(count.traffic_bytes)},
                                   {"peak_bytes", Json(count.peak_bytes)}}));
  return Json::object({{"schema", "llmq.nodes/1"},
                       {"model", model},
                       {"method", method},
                       {"scheme", scheme},
                       {"format", format},
                       {"network_bytes_per_second", network_bytes_per_second},
                       {"chunks", Json(shares.chunks)},
                       {"shards", Json(shares.one_file ? 1 : shares.shards)},
                       {"seconds_by_part", of_one},
                       {"nodes", counts},
                       {"paying_nodes", unknown.empty() ? Json(paying) : Json()},
                       {"paying_share", kPayingShare},
                       {"reason", said()}});
}

}  // namespace llmq
