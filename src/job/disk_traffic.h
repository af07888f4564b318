// What a run reads of its model and writes: the files through which bytes are counted, and what was announced
// beside what was counted.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "base/io.h"
#include "base/json.h"
#include "quant/plan/plan_costs.h"

namespace llmq {

// The Ios of a run: bytes are counted of each.
struct RunFiles {
  explicit RunFiles(Reading reading)
      : model(make_system_io(reading)), scratch(make_system_io(Reading::kCached)) {}
  std::unique_ptr<Io> model;    // its files; outlives what was opened through it
  std::unique_ptr<Io> scratch;  // activations that do not fit in memory, and a probe of the disk
};

struct DiskTraffic {
  std::vector<ReadPass> reads;  // as announced
  std::uint64_t planned_bytes_written = 0;
  std::uint64_t bytes_read = 0, bytes_written = 0;  // of the model's files, and of the output's
  std::uint64_t scratch_bytes_written = 0;
};

// {planned_bytes_read, bytes_read, planned_bytes_written, bytes_written, scratch_bytes_written, reads}
Json traffic_json(const DiskTraffic& traffic);
// The same members in a document that has others.
void add_traffic(Json& document, const DiskTraffic& traffic);

}  // namespace llmq
