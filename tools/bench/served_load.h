// This program's own server under a planned load: what the suites serve and matrix of `llmq bench` share.
#pragma once
#include <memory>
#include <thread>
#include <vector>

#include "evaluate/load_report.h"
#include "tools/prepared_server.h"

namespace llmq::tools {

// Serves on a free port of the loopback interface, until the object goes.
class OwnServer {
 public:
  OwnServer(PreparedServer& prepared, std::int64_t clients);
  HttpTarget target;

 private:
  std::jthread thread_;
};

// Waits for an answer as long as the server above does: a long queue is what is measured, not an error.
HttpClientLimits patient();

// Lengths that nobody chose (`mix` has defaults) are made to fit a context; Error(kUsage) where a chosen load
// does not.
void fit_load(bool prompts_given, bool answers_given, std::int64_t context, LoadMix& mix);

// A warm-up, discarded, whose words are other ones, and the row. `own`: the server is in this process, whose
// memory is measured.
LoadRow measure_load(HttpClient& client, const LoadTarget& target, const LoadMix& mix, const LoadPace& pace,
                     double rate, bool own);

// What the figures do not show goes to the log, each row under its name. True when every request was
// answered.
bool warn_of_failed_requests(const LoadRow& row, const std::string& name);
void warn_if_unsteady(const MachineFigures& machine);

}  // namespace llmq::tools
