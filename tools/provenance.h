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

#include "export/convert.h"
#include "export/provenance/manifest.h"
#include "io/digest_cache.h"
#include "quant/plan/plan.h"
#include "quant/recipe/recipe.h"
#include "tools/command.h"
#include "tools/loaded_model.h"

namespace llmq::tools {

struct InputFile {
  std::string name;  // "model/config.json", "calibration/c4.utf8"
  Path path;
  bool of_model = false;
};
// Of those below the model's: shards, configuration and index, and what lies beside them.
std::vector<InputFile> model_files(Io& io, const Checkpoint& checkpoint);
// The model's files, the calibration text, an importance matrix, and the recipe's own file where there is
// one.
std::vector<InputFile> input_files(Io& io, const Recipe& recipe, bool calibrates,
                                   const Checkpoint& checkpoint);

// The model's, and an adapter's that is folded in.
std::vector<InputFile> conversion_files(Io& io, const Checkpoint& checkpoint, const ConvertRequest& request);

// What opening the model and hashing its files read, beside its tensors; what is remembered of a file is not
// read.
std::vector<ReadPass> whole_file_reads(const Checkpoint& checkpoint, Io& model_io, DigestCache& digests);
// Of the files that lie beside the model's tensors and are copied as they are.
std::uint64_t companion_bytes(const Checkpoint& checkpoint, Io& model_io);

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

// What --portable asks of the backend; empty: nothing.
std::string wanted_arithmetic(const Recipe& recipe);

// What a run's manifest says before its inputs are hashed.
ProvenanceFacts provenance_facts(const Recipe& recipe, const Backend& backend, Compute compute,
                                 const Session& session);

}  // namespace llmq::tools
