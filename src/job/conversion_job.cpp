#include "job/conversion_job.h"

#include "export/formats/output_format.h"
#include "job/job_identity.h"
#include "job/run_provenance.h"
#include "model/open_checkpoint.h"

namespace llmq {

std::variant<ConvertReport, PublishedOutput> run_conversion(Io& io, ConvertRequest request, bool paranoid,
                                                            const Program& program) {
  request.version = program.version;
  request.target.single_file = is_one_file(request.to);
  Ranks& ranks = ranks_of(request.target);
  DigestCache digests(io, paranoid ? Path() : DigestCache::default_file());
  std::optional<Checkpoint> checkpoint;
  const auto identify = [&] {
    request.target.job = make_conversion_job(request, *checkpoint, program,
                                             [&](const Path& path) { return digests.sha256(path); });
    return job_facts(request.target.job);
  };
  const auto prepare = [&] {
    check_conversion(request);
    checkpoint = open_checkpoint(io, request.source);
  };
  begin_together(ranks, prepare, identify);
  std::optional<PublishedOutput> found;
  first_begins(ranks, [&] {
    if (ranks.size() == 1) identify();
    found = unchanged_output(io, request.target, Json(), digests);
  });
  digests.save();
  if (most_of(ranks, found ? 1 : 0) != 0) return found ? *std::move(found) : PublishedOutput();
  if (ranks.rank() != 0) return convert(io, *checkpoint, request);
  RunProvenance provenance(io, io, digests, conversion_files(io, *checkpoint, request),
                           conversion_provenance(request, program));
  provenance.facts().changed_before = changes_of_linears(*checkpoint);
  request.manifest = [&](const std::vector<NamedDigest>& files) { return provenance.manifest(files); };
  return convert(io, *checkpoint, request);
}

}  // namespace llmq
