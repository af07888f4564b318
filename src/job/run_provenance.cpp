#include "job/run_provenance.h"

#include "base/error.h"

namespace llmq {

RunProvenance::RunProvenance(Io& io, Io& model_io, DigestCache& digests, std::vector<InputFile> files,
                             ProvenanceFacts facts)
    : io_(io), model_io_(model_io), digests_(digests), files_(std::move(files)), facts_(std::move(facts)) {
  hashing_ = std::async(std::launch::async, [this] { return hash_all(); });
}

RunProvenance::~RunProvenance() {
  stop_ = true;
  if (hashing_.valid()) hashing_.wait();
}

std::vector<RunProvenance::Hashed> RunProvenance::hash_all() {
  std::vector<Hashed> hashed;
  for (const InputFile& file : files_) {
    if (stop_) break;
    Io& io = io_of(file);
    const FileStamp stamp = io.open(file.path)->stamp();
    hashed.push_back({{file.name, stamp.size, digests_.sha256(file.path, io)}, stamp});
  }
  digests_.save();
  return hashed;
}

std::string RunProvenance::manifest(const std::vector<NamedDigest>& outputs) {
  const std::vector<Hashed> hashed = hashing_.get();
  facts_.inputs.clear();
  for (std::size_t i = 0; i < hashed.size(); ++i) {
    if (io_of(files_[i]).open(files_[i].path)->stamp() != hashed[i].stamp)
      fail(ErrorKind::kBadInput, {"was changed while the run read it",
                                  files_[i].path.string(),
                                  {},
                                  "run again when nothing writes to it"});
    facts_.inputs.push_back(hashed[i].digest);
  }
  return make_manifest(facts_, outputs).dump(1) + "\n";
}

ProvenanceFacts job_provenance(const Recipe& recipe, const JobSettings& settings) {
  ProvenanceFacts facts;
  facts.version = settings.program.version;
  facts.commit = settings.program.commit;
  facts.command = settings.program.command_line;
  facts.recipe = recipe.to_json();
  facts.compute = compute_name(settings.compute);
  facts.backend = settings.backend().arithmetic();
  return facts;
}

ProvenanceFacts conversion_provenance(const ConvertRequest& request, const Program& program) {
  ProvenanceFacts facts;
  facts.kind = BuildKind::kConvert;
  facts.version = program.version;
  facts.commit = program.commit;
  facts.command = program.command_line;
  facts.recipe = conversion_json(request);
  return facts;
}

}  // namespace llmq
