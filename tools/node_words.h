// What several machines would take, for people: the traffic of a plan's ranks, and `llmq estimate --nodes`.
#pragma once
#include <string>

#include "job/documents/node_estimate.h"
#include "tools/command.h"

namespace llmq::tools {

void add_network(CLI::App& command, std::string& rate);
// "100Gb/s", "12.5GB/s" -> bytes a second; kNetworkBytesPerSecond when empty. Error(kUsage) for another text.
double network_of(const std::string& rate);
std::string network_text(double bytes_per_second);  // "100 Gb/s"

// What the ranks of a plan send, and the seconds of that.
void print_traffic(const RankTraffic& traffic, double bytes_per_second);
void print_nodes(const NodeEstimate& estimate);

}  // namespace llmq::tools
