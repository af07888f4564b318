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
  check_conversion(request);
  const Checkpoint checkpoint = open_checkpoint(io, request.source);
  DigestCache digests(io, paranoid ? Path() : DigestCache::default_file());
  request.target.job = make_conversion_job(request, checkpoint, program,
                                           [&](const Path& path) { return digests.sha256(path); });
  std::optional<PublishedOutput> found = unchanged_output(io, request.target, Json(), digests);
  digests.save();
  if (found) return *std::move(found);
  RunProvenance provenance(io, io, digests, conversion_files(io, checkpoint, request),
                           conversion_provenance(request, program));
  request.manifest = [&](const std::vector<NamedDigest>& files) { return provenance.manifest(files); };
  return convert(io, checkpoint, request);
}

}  // namespace llmq
