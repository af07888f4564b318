#include "tools/conversion.h"

#include "tools/interrupt.h"
#include "tools/job.h"
#include "tools/job_ends.h"
#include "tools/print.h"
#include "tools/provenance.h"
#include "tools/version.h"

namespace llmq::tools {
namespace {

ProvenanceFacts conversion_facts(const ConvertRequest& request, const Session& session) {
  ProvenanceFacts facts;
  facts.kind = BuildKind::kConvert;
  facts.version = version_text();
  facts.commit = commit_text();
  facts.command = session.command_line;
  facts.recipe = conversion_json(request);
  return facts;
}

std::string folded_text(const ConvertReport& report) {
  return report.adapter.empty() ? "" : fmt::format(" with {} in {} linears", report.adapter, report.folded);
}

int report_done(const ConvertReport& report, const GlobalOptions& globals) {
  Json document = report.to_json();
  document["status"] = "done";
  if (globals.json)
    print_json(document);
  else
    print_line(fmt::format("{} ({}, {}){} -> {} ({}, {}), {} tensors, {}", report.source, report.from,
                           bytes_text(report.bytes_in), folded_text(report), report.destination, report.to,
                           bytes_text(report.bytes_out), report.tensors, report.digest));
  return 0;
}

int report_unchanged(const PublishedOutput& found, const ConvertRequest& request, const GlobalOptions& globals) {
  const std::string digest = found.report.at("digest").as_string();
  if (globals.json)
    print_json(Json::object({{"schema", conversion_schema(request.adapter)},
                             {"status", "unchanged"},
                             {"source", request.source},
                             {"output", request.target.directory.string()},
                             {"digest", digest}}));
  else
    print_line(fmt::format("{}: unchanged, {} from the same job", found.directory.string(), digest));
  return 0;
}

}  // namespace

int run_conversion(ConvertRequest& request, bool paranoid, const Session& session) {
  watch_signals();
  request.version = version_text();
  request.threads = session.globals.threads;
  request.on_tensor = [](const std::string&) { throw_if_interrupted(); };
  check_conversion(request);
  Io& io = system_io();
  const Checkpoint checkpoint = Checkpoint::open(io, request.source);
  DigestCache digests(io, paranoid ? Path() : DigestCache::default_file());
  request.target.job =
      make_conversion_job(request, checkpoint, [&](const Path& path) { return digests.sha256(path); });
  const std::optional<PublishedOutput> found = unchanged_output(io, request.target, Json(), digests);
  digests.save();
  if (found) return report_unchanged(*found, request, session.globals);
  RunProvenance provenance(io, io, digests, conversion_files(io, checkpoint, request), conversion_facts(request, session));
  request.manifest = [&](const std::vector<NamedDigest>& files) { return provenance.manifest(files); };
  return report_done(convert(io, checkpoint, request), session.globals);
}

}  // namespace llmq::tools
