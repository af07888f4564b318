// report.json (schema "llmq.report/1"): what was done to every module, and what it cost. It also marks a
// directory as an output of llmq.
//
// The pipeline's own report (modules, fallbacks, warnings, times) is taken as it is; this adds what the
// directory is: tool, source, method, format, sizes, bits per weight, digests of the calibration tokens, the
// recipe, and which loaders take it. No host name and no user name enter.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "export/formats/loader_constraints.h"

namespace llmq {

// What a model card says for the hub to read; empty where nothing is sure.
struct CardHeader {
  std::string base_model;             // hub name
  std::vector<std::string> licenses;  // "apache-2.0"
  std::string license_name, license_link;
  std::vector<std::string> datasets;  // hub names
  std::string quantized_by;
};

// That was folded into the model before it was rounded.
struct ReportedAdapter {
  std::string directory;  // as the user named it
  std::int64_t rank = 0;  // the largest
  std::int64_t linears = 0;
};

struct RunFacts {
  std::string version;  // of llmq
  std::string command;  // as typed; empty when unknown
  std::string model;    // as the user named it
  std::optional<ReportedAdapter> adapter;
  std::string method, scheme, format;
  Json recipe;
  Json job;            // what decided every byte (OutputTarget::job)
  std::string digest;  // of the output
  Json calibration;    // {samples, sequence_length, tokens, sha256, text: ...}; null without
  std::uint64_t bytes_in = 0, bytes_out = 0;
  double bits_per_weight = 0, bits_per_weight_total = 0;
  CardHeader card;
  // What an output is held against: "models/llama", "models/llama with adapters/qlora".
  std::string original() const;
};

// `run`: an object whose keys are kept after those above (QuantizeReport::to_json()); null is fine.
Json make_report(const RunFacts& facts, std::span<const LoaderVerdict> loaders, const Json& run);

}  // namespace llmq
