// `llmq bench --suite serve` in the forms others read: JSON (schema llmq.bench/1), CSV and one HTML page
// without outside references.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "evaluate/load_drive.h"
#include "evaluate/report_parts.h"

namespace llmq {

struct LoadRow {
  std::int64_t clients = 0;
  double rate = 0;  // requests per second; infinity: as fast as the clients take them
  bool static_batches = false;
  LoadResult result;
  ServerCounters counters;  // what the row added
  // resident, of server and client together; none for a server elsewhere
  std::optional<std::uint64_t> peak_memory_bytes;
  std::string batching() const { return static_batches ? "static" : "continuous"; }
  std::optional<double> acceptance() const;        // accepted / proposed tokens, where any were proposed
  std::optional<double> prefix_hit_share() const;  // of the prompts' tokens
};

// The figures of a row in the order and under the names of the JSON schema, from the batch on; CSV has the
// same.
Json::Object load_members(const LoadRow& row, const LoadMix& mix, std::optional<double> price_per_hour);
// The figures of a row in the order of the tables for people, percentiles in milliseconds. `memory`: words
// of peak_memory_bytes, where there are any.
std::vector<std::string> load_cells(const LoadRow& row, std::optional<double> price_per_hour,
                                    std::string (*memory)(std::uint64_t bytes));
// What the requests are, as a sentence; their number is for `each`.
std::string load_words(const LoadMix& mix, const std::string& each = "a row");

struct LoadReport {
  std::string model, config, compute;     // as SpeedReport's; compute is empty for a server elsewhere
  std::string endpoint;                   // empty: this program's own server
  std::optional<MachineFigures> machine;  // none for a server elsewhere
  std::optional<double> price_per_hour;
  LoadMix mix;
  std::vector<LoadRow> rows;

  Json to_json() const;
  std::string to_csv() const;
  std::string to_html() const;
};

std::string rate_text(double rate);  // "4", "inf"

}  // namespace llmq
