#include "job/job_outcome.h"

#include <algorithm>

#include "job/job_settings.h"

namespace llmq {

Json calibration_json(const Recipe& recipe, const CalibrationSet& calibration) {
  if (calibration.samples.empty()) return {};
  Json json = Json::object({{"samples", static_cast<std::int64_t>(calibration.samples.size())},
                            {"tokens", calibration.tokens()},
                            {"sha256", calibration.sha256},
                            {"sequence_length", recipe.calibration.sequence_length},
                            {"text", text_list(recipe.calibration.text)},
                            {"seed", recipe.calibration.seed},
                            {"shuffle", recipe.calibration.shuffle}});
  if (recipe.calibration.chat_template) json["chat_template"] = true;
  return json;
}

namespace {

// Of several ranks how many they were, and the bytes of their messages.
void add_ranks(Json& document, const JobOutcome& o) {
  if (o.ranks > 1)
    document["ranks"] = Json::object({{"count", o.ranks}, {"traffic_bytes", o.bytes_between_ranks}});
}

}  // namespace

void add_findings(Json& report, const JobOutcome& o) {
  report["memory"]["planned_peak_bytes"] = o.planned_peak;
  if (o.memory_limit > 0) report["memory"]["limit_bytes"] = o.memory_limit;
  report["memory"]["peak_rss_bytes"] = o.peak_rss_bytes;
  report["memory"]["peak_device_bytes"] = o.peak_device_bytes;
  report["disk"] = traffic_json(o.disk);
  add_ranks(report, o);
  if (o.prediction) {
    report["time"] = o.prediction->to_json();
    report["time"]["found_seconds"] = o.predicted_part;
  }
  if (o.evaluation) report["evaluation"] = evaluation_json(*o.evaluation, o.facts.original());
}

Json outcome_json(const JobOutcome& o) {
  Json document = Json::object({{"schema", "llmq.quantize/1"},
                                {"status", "done"},
                                {"output", o.output},
                                {"version", o.version.empty() ? Json() : Json(o.version)},
                                {"method", o.facts.method},
                                {"scheme", o.facts.scheme},
                                {"format", o.facts.format},
                                {"compute", compute_name(o.compute)},
                                {"seconds", o.seconds},
                                {"peak_rss_bytes", o.peak_rss_bytes},
                                {"peak_device_bytes", o.peak_device_bytes},
                                {"planned_peak_bytes", o.planned_peak},
                                {"predicted_seconds", o.prediction ? Json(o.prediction->seconds) : Json()},
                                {"bytes_in", o.facts.bytes_in},
                                {"bytes_out", o.facts.bytes_out},
                                {"bits_per_weight", o.facts.bits_per_weight},
                                {"bits_per_weight_total", o.facts.bits_per_weight_total},
                                {"modules", static_cast<std::int64_t>(o.modules)},
                                {"calibration", o.facts.calibration},
                                {"fallbacks", fallbacks_json(o.fallbacks)},
                                {"warnings", text_list(o.warnings)},
                                {"resumed_blocks", o.resumed_blocks},
                                {"digest", o.facts.digest}});
  add_traffic(document, o.disk);
  add_ranks(document, o);
  if (!o.mixed.is_null()) document["mixed"] = o.mixed;
  if (o.evaluation) document["evaluation"] = evaluation_json(*o.evaluation, o.facts.original());
  return document;
}

int job_exit_code(const Json& outcome, bool strict) {
  if (const Json* evaluation = outcome.find("evaluation"))
    for (const Json& gate : evaluation->at("gates").items())
      if (!gate.at("met").as_bool()) return 3;
  return strict && !outcome.at("fallbacks").items().empty() ? 3 : 0;
}

}  // namespace llmq
