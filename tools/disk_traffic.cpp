#include "tools/disk_traffic.h"

#include <fmt/format.h>

#include "quant/plan/disk_reads.h"
#include "tools/print.h"

namespace llmq::tools {

Json traffic_json(const DiskTraffic& traffic) {
  return Json::object({{"planned_bytes_read", total_bytes(traffic.reads)},
                       {"bytes_read", traffic.bytes_read},
                       {"planned_bytes_written", traffic.planned_bytes_written},
                       {"bytes_written", traffic.bytes_written},
                       {"scratch_bytes_written", traffic.scratch_bytes_written},
                       {"reads", reads_json(traffic.reads)}});
}

void add_traffic(Json& document, const DiskTraffic& traffic) {
  const Json members = traffic_json(traffic);
  for (const auto& [key, value] : members.members()) document[key] = value;
}

void print_reads(const std::vector<ReadPass>& reads) {
  std::vector<std::vector<std::string>> rows = {{"reads", "bytes"}};
  for (const ReadPass& pass : reads) rows.push_back({pass.what, bytes_text(pass.bytes)});
  rows.push_back({"all", bytes_text(total_bytes(reads))});
  print_table(rows);
}

void print_traffic(const DiskTraffic& traffic) {
  print_line(fmt::format("read {} of the model (planned {}), wrote {} (planned {})",
                         bytes_text(traffic.bytes_read), bytes_text(total_bytes(traffic.reads)),
                         bytes_text(traffic.bytes_written), bytes_text(traffic.planned_bytes_written)));
}

}  // namespace llmq::tools
