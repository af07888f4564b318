// Where a run's bytes come from: every file it reads is hashed on a thread of its own while the run goes on,
// and the manifest says so. Digests of files that have not changed since an earlier run are remembered
// (io/digest_cache.h).
//
// Cost: one more reading of every input, at the speed of SHA-256, on one core.
#pragma once
#include <atomic>
#include <future>
#include <string>
#include <vector>

#include "export/provenance/manifest.h"
#include "job/input_files.h"
#include "job/job_settings.h"

namespace llmq {

class RunProvenance {
 public:
  // `facts` lacks the inputs (and what only the run knows: facts() may be filled until the manifest is asked
  // for). The model's files are read through `model_io`. All three outlive this.
  RunProvenance(Io& io, Io& model_io, DigestCache& digests, std::vector<InputFile> files,
                ProvenanceFacts facts);
  ~RunProvenance();  // the hash of the file at hand is finished
  RunProvenance(const RunProvenance&) = delete;
  RunProvenance& operator=(const RunProvenance&) = delete;

  ProvenanceFacts& facts() { return facts_; }
  void wait() const { hashing_.wait(); }  // until every input is hashed
  // Waits for the hashes. Error(kBadInput) when an input was changed while the run read it.
  std::string manifest(const std::vector<NamedDigest>& outputs);

 private:
  struct Hashed {
    NamedDigest digest;
    FileStamp stamp;
  };
  std::vector<Hashed> hash_all();

  Io& io_of(const InputFile& file) const { return file.of_model ? model_io_ : io_; }

  Io &io_, &model_io_;
  DigestCache& digests_;
  std::vector<InputFile> files_;
  ProvenanceFacts facts_;
  std::atomic<bool> stop_ = false;
  std::future<std::vector<Hashed>> hashing_;
};

// What a manifest says before its inputs are hashed, of a job and of a conversion.
ProvenanceFacts job_provenance(const Recipe& recipe, const JobSettings& settings);
ProvenanceFacts conversion_provenance(const ConvertRequest& request, const Program& program);

}  // namespace llmq
