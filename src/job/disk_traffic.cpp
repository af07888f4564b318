#include "job/disk_traffic.h"

#include "quant/plan/disk_reads.h"

namespace llmq {

Json traffic_json(const DiskTraffic& traffic) {
  return Json::object({{"planned_bytes_read", total_bytes(traffic.reads)},
                       {"bytes_read", traffic.bytes_read},
                       {"planned_bytes_written", traffic.planned_bytes_written},
                       {"bytes_written", traffic.bytes_written},
                       {"scratch_bytes_written", traffic.scratch_bytes_written},
                       {"reads", named_bytes_json(traffic.reads)}});
}

void add_traffic(Json& document, const DiskTraffic& traffic) {
  const Json members = traffic_json(traffic);
  for (const auto& [key, value] : members.members()) document[key] = value;
}

}  // namespace llmq
