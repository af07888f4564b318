#include "tools/node_words.h"

#include <array>
#include <charconv>

#include "base/error.h"
#include "tools/print.h"

namespace llmq::tools {
namespace {

struct Rate {
  const char* unit;
  double bytes;
};
constexpr std::array<Rate, 6> kRates = {
    {{"Mb/s", 1e6 / 8}, {"Gb/s", 1e9 / 8}, {"Tb/s", 1e12 / 8}, {"MB/s", 1e6}, {"GB/s", 1e9}, {"B/s", 1}}};

}  // namespace

void add_network(CLI::App& command, std::string& rate) {
  command
      .add_option("--network", rate,
                  "What each rank's network carries in either direction, for plans of several ranks: 10Gb/s, "
                  "12.5GB/s; by default 100Gb/s")
      ->type_name("RATE");
}

double network_of(const std::string& rate) {
  if (rate.empty()) return kNetworkBytesPerSecond;
  double number = 0;
  const auto [rest, error] = std::from_chars(rate.data(), rate.data() + rate.size(), number);
  const std::string unit(rest, rate.data() + rate.size());
  for (const Rate& known : kRates)
    if (error == std::errc() && unit == known.unit && number > 0 && number <= 1e9)
      return number * known.bytes;
  fail(ErrorKind::kUsage, {"'" + rate + "' is no speed of a network",
                           {},
                           "--network",
                           "write it as 10Gb/s (bits) or 12.5GB/s (bytes)"});
}

std::string network_text(double bytes_per_second) {
  return fmt::format("{} Gb/s", number_text(bytes_per_second * 8e-9, 3));
}

void print_traffic(const RankTraffic& traffic, double bytes_per_second) {
  if (traffic.ranks == 1) return;
  std::vector<std::vector<std::string>> rows = {{fmt::format("{} ranks send", traffic.ranks), "bytes"}};
  for (const NamedBytes& part : traffic.parts) rows.push_back({part.what, bytes_text(part.bytes)});
  rows.push_back({"all", bytes_text(traffic.bytes())});
  print_table(rows);
  print_line(fmt::format("{} of it pass in turn while others wait: {} at {} (--network says another speed)",
                         bytes_text(traffic.in_turn), seconds_text(traffic.seconds(bytes_per_second)),
                         network_text(bytes_per_second)));
}

void print_nodes(const NodeEstimate& e) {
  print_line(
      fmt::format("{} of {} to {}, written as {}, on nodes like this machine with a rank each, {} between "
                  "them",
                  e.method, e.model, e.scheme, e.format, network_text(e.network_bytes_per_second)));
  std::vector<std::vector<std::string>> rows = {
      {"nodes", "seconds", "of them network", "times as fast", "traffic", "memory of a rank"}};
  for (const NodeCount& count : e.nodes)
    rows.push_back({std::to_string(count.nodes), e.unknown.empty() ? seconds_text(count.seconds) : "?",
                    seconds_text(count.network_seconds),
                    e.unknown.empty() ? fmt::format("{:.2f}", e.nodes.front().seconds / count.seconds) : "?",
                    bytes_text(count.traffic_bytes), bytes_text(count.peak_bytes)});
  print_table(rows);
  print_line(e.said());
  print_line("a model of what one process takes here and of what is sent; it was measured on no network");
}

}  // namespace llmq::tools
