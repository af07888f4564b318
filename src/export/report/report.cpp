#include "export/report/report.h"

#include "export/formats/packed_formats.h"
#include "export/output/published_output.h"

namespace llmq {

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
  if (run.is_object())
    for (const Json::Member& member : run.members())
      if (report.find(member.first) == nullptr) report[member.first] = member.second;
  return report;
}

std::uint64_t stored_bits(const std::string& format, const PlannedModule& module) {
  std::uint64_t bits = 0;
  for (const TensorDeclaration& tensor : packed_format(format).declare(module))
    if (!tensor.name.ends_with(".weight_shape"))
      bits += 8 * TensorView(static_cast<const void*>(nullptr), tensor.dtype, tensor.shape).bytes();
  return bits;
}

double stored_bits_per_weight(const std::string& format, std::span<const PlannedModule> modules) {
  double bits = 0, weights = 0;
  for (const PlannedModule& m : modules) {
    weights += static_cast<double>(m.out_features) * static_cast<double>(m.in_features);
    bits += static_cast<double>(stored_bits(format, m));
  }
  return weights == 0 ? 0 : bits / weights;
}

}  // namespace llmq
