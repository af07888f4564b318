// A run that rounds to nearest and calibrates nothing, block by block: by one process all of it, by several
// ranks each its part.
//
//   a part of a block   its linears of which this rank lacks something (ModelWriter::lacks_module())
//   a round             the next part of every rank; then rank 0 records what is on the disk by then
//
// Ranks have parts of about equal size, so that in a round they wait little for each other. Rank 0 reports
// what one process would have: the findings of all, in the order in which one process finds them.
#pragma once
#include <vector>

#include "quant/pipeline/block_record.h"

namespace llmq {

class RoundingRun {
 public:
  explicit RoundingRun(QuantizeRun& run);  // behind what an interrupted run found, which the report has
  // Blocks that it finished, whichever ranks had which part of them.
  std::int64_t finished_blocks() const;
  std::size_t first_block() const;  // of which this rank has a part; as many as there are: none
  void run();
  // Once everything is on the disk: the last records, and the report.
  void finish();

 private:
  void round_part(std::size_t block);
  void take_shared();

  QuantizeRun& run_;
  std::vector<std::vector<std::string>> modules_;  // of each block, in the order in which they are rounded
  std::vector<std::size_t> mine_;                  // blocks of which this rank has a part
  ReportMark before_;
  std::vector<Json> found_;  // by all ranks, at rank 0
};

}  // namespace llmq
