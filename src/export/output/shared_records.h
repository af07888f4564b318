// Records of what each rank has on the disk, on their way to the journal, by rank 0.
//
// A record is {"tensors": {name: SHA-256}, "findings": ...} of a block, or of a rank's part of it.
#pragma once
#include <cstddef>
#include <deque>
#include <mutex>
#include <vector>

#include "export/output/model_writer.h"

namespace llmq {

class SharedRecords {
 public:
  explicit SharedRecords(Ranks& ranks) : ranks_(ranks), waiting_(static_cast<std::size_t>(ranks.size())) {}

  void add(Json record);  // of this rank, by any thread
  // At rank 0 what is to be recorded of what all ranks have added by now, in order; elsewhere nothing. Of all
  // ranks.
  std::vector<Json> take(Committed what);

 private:
  Json take_block();

  Ranks& ranks_;
  std::mutex mutex_;
  Json own_ = Json::array();
  std::vector<std::deque<Json>> waiting_;  // by rank: parts of blocks that not all ranks have on the disk
};

}  // namespace llmq
