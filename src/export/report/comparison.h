// Several outputs side by side: size, bits per weight, how far each is from its original, and what making and
// running it cost. Everything is read from each output's own report, and from what `llmq eval-ppl --json` and
// `llmq bench --json` measured of it; what nobody measured stays open.
//
// An output is on the Pareto line when no other has as few bits per weight over the whole model and as small
// a KL divergence.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/io.h"
#include "base/json.h"

namespace llmq {

struct ComparedOutput {
  std::string name;  // as it was named
  std::string original, method, scheme, format, digest;
  std::optional<double> bytes;                                // of the weights written
  std::optional<double> bits_per_weight;                      // of the quantized linears
  std::optional<double> bits_total;                           // over the whole model
  std::optional<double> ppl, delta_ppl, kl, kl_stderr, top1;  // KL in nats
  std::string protocol;                                       // by which they were measured, with its text
  std::optional<double> quantize_seconds, quantize_peak_bytes;
  std::optional<double> decode_tokens_per_second, run_peak_bytes;  // of the smallest batch that was measured
  std::string machine;                                             // that ran it
  bool on_pareto_line = false;
  bool placed() const { return bits_total && kl && *kl > 0; }  // it has a place in the figure
};

struct Comparison {
  std::vector<ComparedOutput> outputs;
  std::vector<std::string> warnings;  // what keeps figures from being held against each other
  std::vector<std::string> notes;     // what is open
  Json to_json() const;               // schema llmq.report-outputs/1
};

// The report of an output: of a directory, of the version that its `latest` names, or beside a .gguf file.
// Error(kBadInput) where there is none.
Json read_output_report(Io& io, const Path& output);

// `measured`: files of `llmq eval-ppl --json` and `llmq bench --json`, which win over the reports.
// Error(kBadInput) for a file of another kind, and for one that is of none of the outputs.
Comparison compare_outputs(Io& io, std::span<const std::string> outputs,
                           std::span<const std::string> measured);

// A page: KL against bits per weight with the Pareto line, and all figures in a table. Names are hostile, and
// escaped.
std::string comparison_page(const Comparison& comparison);

// The same figure for Vega-Lite 6 (https://vega.github.io/schema/vega-lite/v6.json), with its data.
Json comparison_vega(const Comparison& comparison);

}  // namespace llmq
