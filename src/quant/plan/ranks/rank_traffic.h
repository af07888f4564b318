// What ranks that share a job send to each other, from the plan's shapes alone (docs/adr/0035).
//
//   a sum of P places, N ranks    2 (N - 1) 8 P bytes: band after band the N - 1 others give its owner their
//                                 totals, and get the rounded sums (calibration/joined_sums.h)
//   what of it passes in turn     (N - 1 + ceil(log2 N)) 8 P: one owner's network takes a band from each of
//                                 the others, then it goes out in a tree
//
// Summed are, of each input of which statistics are taken, the triangle of its Gram matrix, P = K (K + 1) / 2
// of K channels, and its magnitudes; and [out, K] of an output linear that takes back upstream error.
// Rows are dealt where they are judged and rounded, and every rank is given what the others made of theirs:
// (N - 1) times codes and scales of GPTQ on hosts, and an FP64 loss of each row and candidate. The measuring
// pass of mixed precision has such sums, codes and losses of its own (measuring_work.h). Residues of sums (16
// bytes each, seldom any) and counts are left out: below a hundredth.
#pragma once
#include <cstdint>
#include <vector>

#include "quant/plan/gguf_plan.h"
#include "quant/plan/plan_costs.h"

namespace llmq {

// What plans reckon with where nobody says how fast the network is: 100 Gb/s, of each rank, both ways at
// once.
inline constexpr double kNetworkBytesPerSecond = 12.5e9;

// The share of a calibrated plan's rounding that is dealt by rows, by operations: of GPTQ on hosts the codes,
// out K^2 of each linear, beside a factor of every input, K^3, and nothing on devices; 1 of AWQ's clipping,
// beside which its codes are little; 0 of plain rounding.
double dealt_rounding(const Plan& plan, const ModelSpec& spec);

struct RankTraffic {
  int ranks = 1;
  std::vector<NamedBytes> parts;  // of all ranks together, as Ranks::traffic() counts
  std::uint64_t in_turn = 0;      // what passes a rank's network while the others wait

  std::uint64_t bytes() const { return total_bytes(parts); }
  // At that rate; latency is left out.
  double seconds(double bytes_per_second) const { return static_cast<double>(in_turn) / bytes_per_second; }
  Json to_json(double bytes_per_second) const;
};

// Of `ranks` >= 1 that share a run of this plan; of one nothing.
RankTraffic rank_traffic(const Plan& plan, const ModelSpec& spec, int ranks);
// Of a GGUF: sums of squares of every input, and the bytes of the tensors that others than rank 0 round.
RankTraffic rank_traffic(const GgufPlan& plan, const ModelSpec& spec, int ranks);

// What all of so many ranks would send, and what one holds at most, but for what joins them.
struct RankCosts {
  RankTraffic traffic;
  std::uint64_t peak_bytes = 0;
};
RankCosts over_ranks(Plan plan, const Checkpoint& checkpoint, const ModelSpec& spec, int threads, int ranks);
RankCosts over_ranks(GgufPlan plan, const Checkpoint& checkpoint, const ModelSpec& spec, int ranks);

}  // namespace llmq
