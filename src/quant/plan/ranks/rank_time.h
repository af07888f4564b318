// How long ranks would take together, from what one process was predicted to take
// (quant/plan/time_prediction.h) and from what they send each other: a model, and no measurement on a
// network.
//
//   T(N) = sum over parts of t(part) s(part, N) + traffic in turn / speed of the network
//
//   s = ceil(C / N) / C    what goes over samples: C chunks of them, the unit that ranks share; searches and
//                          losses, which go over samples and over rows
//     = ceil(S / N) / S    what goes over the shards of a directory, S: writing, and all of plain rounding
//     = 1 / N              rounding of a GGUF, whose slabs of rows are dealt in turn
//     = 1 - d + d / N      rounding of a calibrated run, d of which is dealt by rows (dealt_rounding())
//     = 1                  a file that one rank writes, and whatever else every rank does alike
//
// Of mixed precision's measuring pass each of these has a part: samples, a chunk of the measured ones at a
// time; what is dealt evenly; and what every rank does (measuring_work.h).
//
// Nothing is taken to overlap, and nodes are taken to be like this machine, each with a disk that serves it
// as this one does.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "quant/plan/block_timing.h"

namespace llmq {

// The part of mixed precision's pass in a prediction.
inline constexpr const char* kMeasuringPart = "measuring pass of mixed precision";

// What of a job ranks can share, and by what.
struct RankShares {
  std::int64_t chunks = 0;  // of calibration samples; 0: it calibrates nothing
  std::int64_t shards = 1;  // of the output, a directory
  bool one_file = false;    // a GGUF
  double dealt_rounding = 0;
  // Of mixed precision: chunks of the samples that are measured (0: none), the shares of the pass that go
  // over them and that are dealt, and chunks of all samples, more ranks than which do not begin.
  std::int64_t measured_chunks = 0;
  double measured_by_samples = 0, measured_dealt = 0;
  std::int64_t sample_chunks = 0;

  bool goes_over_samples() const { return chunks != 0 || measured_chunks != 0; }
  double of_part(const std::string& part, int ranks) const;  // s(part, N)
  // More ranks than this have nothing to do.
  std::int64_t most_ranks() const;
};

double shared_seconds(const SecondsByPart& parts, const RankShares& shares, int ranks);

// Nodes of which each has one rank, and what they take.
struct NodeCount {
  int nodes = 1;
  double seconds = 0, network_seconds = 0;  // seconds: with those of the network
  std::uint64_t traffic_bytes = 0;          // of all together
  std::uint64_t peak_bytes = 0;             // memory of each
};

// A doubling of the nodes pays where it saves at least this share of the time; at best it saves a half.
inline constexpr double kPayingShare = 0.25;
// 1, 2, 4 ... below `most`, and `most`.
std::vector<int> counts_of_nodes(int most);
// The largest count of `rising` up to which every step pays: a step from a to b nodes at least that part of
// the share which the doubling would have to save, kPayingShare log2(b / a).
int paying_nodes(const std::vector<NodeCount>& rising);

}  // namespace llmq
