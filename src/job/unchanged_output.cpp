#include "job/unchanged_output.h"

#include "export/output/unfinished_output.h"

namespace llmq {

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
  OutputTarget settled = target;
  if (target.single_file) settled.directory = found->directory;  // the first of several files
  settle_publication(io, settled);
  return found;
}

Json unchanged_json(const PublishedOutput& found, const std::string& output, const std::string& compute,
                    std::size_t modules) {
  const auto field = [&](const char* name) {
    const Json* value = found.report.find(name);
    return value == nullptr ? Json() : *value;
  };
  Json document = Json::object({{"schema", "llmq.quantize/1"},
                                {"status", "unchanged"},
                                {"output", output},
                                {"version", found.version.empty() ? Json() : Json(found.version)}});
  for (const char* name : {"method", "scheme", "format", "bytes_in", "bytes_out", "bits_per_weight",
                           "bits_per_weight_total", "calibration", "fallbacks", "warnings", "digest"})
    document[name] = field(name);
  document["compute"] = compute;
  document["modules"] = static_cast<std::int64_t>(modules);
  if (const Json* evaluation = found.report.find("evaluation")) document["evaluation"] = *evaluation;
  return document;
}

}  // namespace llmq
