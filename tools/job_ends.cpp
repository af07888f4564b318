#include "tools/job_ends.h"

#include "base/log.h"
#include "export/output/unfinished_output.h"
#include "tools/print.h"
#include "tools/run_metrics.h"

namespace llmq::tools {

std::optional<PublishedOutput> unchanged_output(Io& io, const OutputTarget& target, const Json& evaluation,
                                                DigestCache& digests) {
  if (target.restart) return std::nullopt;
  if (target.single_file) settle_publication(io, target);
  std::optional<PublishedOutput> found =
      find_unchanged(io, target, [&](const Path& path) { return digests.sha256(path); });
  if (!found) return std::nullopt;
  if (!evaluation.is_null()) {
    const Json* asked = found->report.at("recipe").find("evaluate");
    if (asked == nullptr || !(*asked == evaluation) || found->report.find("evaluation") == nullptr)
      return std::nullopt;
  }
  settle_publication(io, target);
  return found;
}

int report_unchanged(const PublishedOutput& found, const UnchangedRun& run, const GlobalOptions& globals) {
  const Json& report = found.report;
  const auto field = [&](const char* name) {
    const Json* value = report.find(name);
    return value == nullptr ? Json() : *value;
  };
  Json document = Json::object({{"schema", "llmq.quantize/1"},
                                {"status", "unchanged"},
                                {"output", run.output},
                                {"version", found.version.empty() ? Json() : Json(found.version)}});
  for (const char* name : {"method", "scheme", "format", "bytes_in", "bytes_out", "bits_per_weight",
                           "bits_per_weight_total", "calibration", "fallbacks", "warnings", "digest"})
    document[name] = field(name);
  document["compute"] = run.compute;
  document["modules"] = static_cast<std::int64_t>(run.modules);
  document["seconds"] = run.seconds;
  document["peak_rss_bytes"] = peak_resident_bytes();
  document["peak_device_bytes"] = 0;
  bool met = true;
  if (const Json* evaluation = report.find("evaluation")) {
    document["evaluation"] = *evaluation;
    for (const Json& gate : evaluation->at("gates").items()) met = met && gate.at("met").as_bool();
  }
  const int code = !met || (run.strict && !field("fallbacks").items().empty()) ? 3 : 0;
  write_metrics(system_io(), run.metrics_out, document, code);
  if (globals.json)
    print_json(document);
  else
    print_line(fmt::format("{}: unchanged, {} from the same job{}", found.directory.string(),
                           document.at("digest").as_string(),
                           met ? "" : "; a gate of its evaluation was NOT met"));
  return code;
}

int report_interrupted(const std::string& output, const Interrupted& signal, const Session& session) {
  if (session.globals.json)
    print_json(Json::object({{"schema", "llmq.quantize/1"},
                             {"status", "interrupted"},
                             {"output", output},
                             {"resume", session.command_line}}));
  Log::get().note("interrupted; to go on: " + session.command_line);
  return 128 + signal.signal;
}

}  // namespace llmq::tools
