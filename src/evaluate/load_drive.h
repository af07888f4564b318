// Sends a planned load to an OpenAI-compatible server and notes when every piece of every answer came.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "evaluate/load_plan.h"
#include "evaluate/load_result.h"
#include "http/client.h"

namespace llmq {

struct LoadTarget {
  std::string model;          // in every request
  std::string authorization;  // "Bearer ...", or empty
  bool ignore_eos = true;     // beside OpenAI's fields: answers have the length asked for
};

struct LoadPace {
  std::int64_t clients = 16;  // requests under way at a time
  bool at_once = true;        // all arrive at the start: what a request waits for a client is not counted
  // As a server without continuous batching works: `clients` requests begin together, every one runs for as
  // long as the longest of them, and the next begin when all are answered. Tokens beyond a request's own
  // length are not counted. Needs `at_once`.
  bool static_batches = false;
};

// By streams of /v1/completions, greedily, with usage. What fails is told in its trace; `check` (may be
// empty) is called ten times a second and may throw.
std::vector<RequestTrace> drive_load(HttpClient& client, const LoadTarget& target,
                                     std::span<const PlannedRequest> plan, const LoadPace& pace,
                                     const std::function<void()>& check);

// The one model that /v1/models names first. Error(kBadInput) where it names none.
std::string first_model(HttpClient& client, const std::string& authorization);

// What /metrics of llmq and vLLM count; found is false where there is no such page.
struct ServerCounters {
  bool found = false;
  double drafted = 0, accepted = 0, prefix_queries = 0, prefix_hits = 0;
};
ServerCounters server_counters(HttpClient& client, const std::string& authorization);
ServerCounters read_counters(const std::string& metrics);  // Prometheus' text

}  // namespace llmq
