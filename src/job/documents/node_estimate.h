// `llmq estimate --nodes`: what a job would take on 1, 2, 4 ... nodes with a rank each, and where adding
// nodes stops paying (quant/plan/ranks/rank_time.h has the model, quant/plan/ranks/rank_traffic.h the
// traffic).
#pragma once
#include <string>
#include <vector>

#include "job/quantize_job.h"
#include "quant/plan/ranks/rank_time.h"

namespace llmq {

struct NodeEstimate {
  std::string model, method, scheme, format;
  double network_bytes_per_second = 0;
  RankShares shares;
  SecondsByPart parts;           // of one process on this machine
  std::string unknown;           // why there is no time; then nothing is said of what pays
  std::vector<NodeCount> nodes;  // rising; not above what has something to do
  int paying = 1;                // the last of them that pays
  std::string said() const;      // the sentence about that
  Json to_json() const;          // schema llmq.nodes/1
};

// `most` >= 1. Mixed precision is measured here, by this process.
NodeEstimate estimate_nodes(QuantizeJob& job, const std::string& model, int most, double bytes_per_second);

}  // namespace llmq
