#include "export/report/comparison.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/json_text.h"
#include "export/output/published_output.h"
#include "export/report/report_page.h"

namespace llmq {
namespace {

using html::list_of;
using html::number_of;

Path report_file(Io& io, const Path& output) {
  if (!io.is_directory(output)) return output.string() + std::string(kBesideFile.front());
  if (io.exists(output / kReportFile)) return output / kReportFile;
  const std::string version = latest_version(io, output);
  return (version.empty() ? output : output / version) / kReportFile;
}

// "hf-2048, 16 windows of builtin:wikitext-2, against SmolLM2"
std::string protocol_of(const Json& evaluation, const std::string& text, const std::string& original) {
  return fmt::format("{}, {:.0f} windows of {}, against {}", text_at(evaluation, "protocol"),
                     number_of(evaluation, "windows").value_or(0), text, original);
}

void take_evaluation(ComparedOutput& output, const Json& evaluation, const std::string& text) {
  output.ppl = number_of(evaluation, "ppl");
  const Json* const against = evaluation.find("against");
  if (against == nullptr || !against->is_object()) return;
  output.delta_ppl = number_of(*against, "delta_ppl");
  output.kl = number_of(*against, "kl_mean");
  output.kl_stderr = number_of(*against, "kl_stderr");
  output.top1 = number_of(*against, "top1_agreement");
  output.protocol = protocol_of(evaluation, text, text_at(*against, "model"));
}

ComparedOutput read_output(Io& io, const std::string& name) {
  const Json report = read_output_report(io, name);
  ComparedOutput output;
  output.name = name;
  output.original = text_at(report, "model");
  output.method = text_at(report, "method");
  output.scheme = text_at(report, "scheme");
  output.format = text_at(report, "format");
  output.digest = text_at(report, "digest");
  output.bytes = number_of(report, "bytes_out");
  output.bits_per_weight = number_of(report, "bits_per_weight");
  output.bits_total = number_of(report, "bits_per_weight_total");
  output.quantize_seconds = number_of(report, "seconds");
  if (const Json* memory = report.find("memory"))
    output.quantize_peak_bytes = number_of(*memory, "peak_rss_bytes");
  if (const Json* evaluation = report.find("evaluation"))
    take_evaluation(output, *evaluation, text_at(*evaluation, "text"));
  return output;
}

// However each was named: from the current directory, or from the root.
bool same_place(const std::string& a, const std::string& b) {
  const auto whole = [](const std::string& name) {
    return tidy_path(std::filesystem::absolute(name).lexically_normal());
  };
  return whole(a) == whole(b);
}

ComparedOutput& output_named(Comparison& comparison, const std::string& model, const std::string& file) {
  for (ComparedOutput& output : comparison.outputs)
    if (same_place(output.name, model)) return output;
  fail(ErrorKind::kBadInput, {"measures '" + model + "', which is none of the outputs compared", file,
                              "model", "name the outputs here as they were named there"});
}

void take_speed(ComparedOutput& output, const Json& bench) {
  const Json* first = nullptr;
  for (const Json& row : list_of(bench, "rows"))
    if (first == nullptr ||
        number_of(row, "batch").value_or(HUGE_VAL) < number_of(*first, "batch").value_or(HUGE_VAL))
      first = &row;
  if (first == nullptr) return;
  output.decode_tokens_per_second = number_of(*first, "tokens_per_second");
  output.run_peak_bytes = number_of(*first, "peak_memory_bytes");
  const Json* const machine = bench.find("machine");
  if (machine == nullptr) return;
  const std::string gpu = text_at(*machine, "gpu");
  output.machine = fmt::format("{}, batch {:.0f}", gpu.empty() ? text_at(*machine, "cpu") : gpu,
                               number_of(*first, "batch").value_or(0));
}

void take_measured(Comparison& comparison, const Json& document, const std::string& file) {
  const std::string schema = text_at(document, "schema");
  if (schema == "llmq.eval-ppl-models/1") {
    for (const Json& one : list_of(document, "models")) take_measured(comparison, one, file);
  } else if (schema == "llmq.eval-ppl/1") {
    const Json* const text = document.find("text");
    take_evaluation(output_named(comparison, text_at(document, "model"), file), document,
                    text == nullptr ? std::string() : text_at(*text, "path"));
  } else if (schema == "llmq.bench/1") {
    take_speed(output_named(comparison, text_at(document, "model"), file), document);
  } else {
    fail(ErrorKind::kBadInput,
         {schema.empty() ? std::string("says no schema") : "is of schema '" + schema + "'", file, "schema",
          "give what llmq eval-ppl --json or llmq bench --json printed"});
  }
}

void mark_pareto(std::vector<ComparedOutput>& outputs) {
  for (ComparedOutput& one : outputs)
    one.on_pareto_line =
        one.placed() && std::none_of(outputs.begin(), outputs.end(), [&](const ComparedOutput& other) {
          return other.placed() && *other.bits_total <= *one.bits_total && *other.kl <= *one.kl &&
                 (*other.bits_total < *one.bits_total || *other.kl < *one.kl);
        });
}

// Of what differs where it should not: "a; b".
void note_if_several(Comparison& comparison, const std::string& words, std::string ComparedOutput::*of) {
  std::set<std::string> found;
  for (const ComparedOutput& output : comparison.outputs)
    if (!(output.*of).empty()) found.insert(output.*of);
  if (found.size() < 2) return;
  std::string list;
  for (const std::string& one : found) list += (list.empty() ? "" : "; ") + one;
  comparison.warnings.push_back(words + ": " + list);
}

void add_notes(Comparison& comparison) {
  note_if_several(comparison,
                  "KL and perplexity were measured in several ways, and cannot be held against each other",
                  &ComparedOutput::protocol);
  note_if_several(comparison, "the outputs are of several originals", &ComparedOutput::original);
  note_if_several(comparison, "speeds were measured on several machines or batches",
                  &ComparedOutput::machine);
  for (const ComparedOutput& output : comparison.outputs)
    if (!output.placed())
      comparison.notes.push_back(
          output.name + " is not in the figure: " +
          (!output.bits_total ? std::string("its report has no bits per weight")
           : !output.kl
               ? "nobody measured its KL divergence; llmq eval-ppl --against ORIGINAL --json does, and "
                 "--measured takes it"
               : "its KL divergence is not above zero, and the axis is logarithmic"));
}

Json open_json(const std::optional<double>& value) { return value ? Json(*value) : Json(); }
Json open_json(const std::string& text) { return text.empty() ? Json() : Json(text); }

}  // namespace

Json read_output_report(Io& io, const Path& output) {
  const Path file = report_file(io, output);
  if (!io.exists(output))
    fail(ErrorKind::kBadInput, {"does not exist", output.string(), {}, "name an output of llmq quantize"});
  if (!io.exists(file))
    fail(ErrorKind::kBadInput,
         {"has no report", file.string(), {}, "name an output of llmq quantize, whose report lies with it"});
  Json report = Json::parse(read_text(io, file), file.string());
  if (text_at(report, "schema") != kReportSchema)
    fail(ErrorKind::kBadInput,
         {"is not a report of llmq", file.string(), "schema", std::string("it should say ") + kReportSchema});
  return report;
}

Comparison compare_outputs(Io& io, std::span<const std::string> outputs,
                           std::span<const std::string> measured) {
  Comparison comparison;
  for (const std::string& output : outputs) {
    for (const ComparedOutput& other : comparison.outputs)
      if (same_place(other.name, output))
        fail(ErrorKind::kUsage, {"is named twice", output, {}, "name each output once"});
    comparison.outputs.push_back(read_output(io, output));
  }
  for (const std::string& file : measured)
    take_measured(comparison, Json::parse(read_text(io, file), file), file);
  mark_pareto(comparison.outputs);
  add_notes(comparison);
  return comparison;
}

Json Comparison::to_json() const {
  Json list = Json::array();
  for (const ComparedOutput& o : outputs)
    list.push_back(Json::object({{"output", o.name},
                                 {"model", open_json(o.original)},
                                 {"method", open_json(o.method)},
                                 {"scheme", open_json(o.scheme)},
                                 {"format", open_json(o.format)},
                                 {"digest", open_json(o.digest)},
                                 {"bytes_out", open_json(o.bytes)},
                                 {"bits_per_weight", open_json(o.bits_per_weight)},
                                 {"bits_per_weight_total", open_json(o.bits_total)},
                                 {"ppl", open_json(o.ppl)},
                                 {"delta_ppl", open_json(o.delta_ppl)},
                                 {"kl_mean", open_json(o.kl)},
                                 {"kl_stderr", open_json(o.kl_stderr)},
                                 {"top1_agreement", open_json(o.top1)},
                                 {"measured_by", open_json(o.protocol)},
                                 {"quantize_seconds", open_json(o.quantize_seconds)},
                                 {"quantize_peak_rss_bytes", open_json(o.quantize_peak_bytes)},
                                 {"tokens_per_second", open_json(o.decode_tokens_per_second)},
                                 {"peak_memory_bytes", open_json(o.run_peak_bytes)},
                                 {"machine", open_json(o.machine)},
                                 {"pareto", o.on_pareto_line}}));
  return Json::object({{"schema", "llmq.report-outputs/1"},
                       {"outputs", list},
                       {"warnings", text_list(warnings)},
                       {"notes", text_list(notes)}});
}

}  // namespace llmq
