#include "export/report/report.h"

#include "export/output/published_output.h"

namespace llmq {

std::string RunFacts::original() const { return adapter ? model + " with " + adapter->directory : model; }

Json make_report(const RunFacts& facts, std::span<const LoaderVerdict> loaders, const Json& run) {
  Json report = Json::object({{"schema", kReportSchema},
                              {"tool", Json::object({{"name", "llmq"}, {"version", facts.version}})},
                              {"command", facts.command},
                              {"model", facts.model},
                              {"method", facts.method},
                              {"scheme", facts.scheme},
                              {"format", facts.format},
                              {"bytes_in", Json(facts.bytes_in)},
                              {"bytes_out", Json(facts.bytes_out)},
                              {"bits_per_weight", facts.bits_per_weight},
                              {"bits_per_weight_total", facts.bits_per_weight_total},
                              {"calibration", facts.calibration},
                              {"recipe", facts.recipe},
                              {"job", facts.job},
                              {"digest", facts.digest},
                              {"loaders", to_json(loaders)}});
  if (facts.adapter)
    report["adapter"] = Json::object({{"directory", facts.adapter->directory},
                                      {"rank", facts.adapter->rank},
                                      {"linears", facts.adapter->linears}});
  if (run.is_object())
    for (const Json::Member& member : run.members())
      if (report.find(member.first) == nullptr) report[member.first] = member.second;
  return report;
}

}  // namespace llmq
