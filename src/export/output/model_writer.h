// An output format: declared up front, fed in any order, published only when whole.
//
// A writer makes the directory in "<output>.unfinished/" beside the target
// (export/output/unfinished_output.h); shards of at most 5 GB stream into it, at their final size from the
// start. complete() writes the index, copies the companion files byte for byte, writes config.json last;
// publish() adds the documents and renames the directory into place. Until then nothing has the output's
// name.
//
// commit() makes what was given so far outlive the process, for a target that names its job: the next writer
// of the same job has it already.
//
// Of an output that several ranks write, each is given what lies in its shards: writes() and lacks_module()
// say what that is. Opening, share_committed() and complete() are of all ranks.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/io.h"
#include "base/json.h"
#include "export/formats/rotated_heads.h"
#include "export/provenance/manifest.h"
#include "io/checkpoint.h"
#include "io/safetensors.h"
#include "model/model_spec.h"
#include "ranks/ranks.h"
#include "tensor/kv_cache_type.h"
#include "tensor/planned_module.h"
#include "tensor/quantized_matrix.h"

namespace llmq {

// What is written beside the shards, and where everything goes.
struct OutputTarget {
  Path directory;
  bool overwrite = false;  // replace an earlier llmq output; anything else is refused always
  std::uint64_t shard_bytes = 5'000'000'000;
  Json job = Json();         // what decides every byte; null: an interrupted run starts again
  Json measured = Json();    // found before the first block, and needed to go on; journalled with the job
  bool restart = false;      // throw away what an interrupted run left
  bool versioned = false;    // directory/v0001-<digest8>/ and a link `latest` to the newest
  std::int64_t keep = 0;     // versions kept; 0: all
  bool single_file = false;  // `directory` is a .gguf file, and its documents lie beside it
  // Who share the writing of a directory: each its shards, rank 0 all else; null: this process alone.
  Ranks* ranks = nullptr;
};

inline Ranks& ranks_of(const OutputTarget& target) { return or_alone(target.ranks); }

struct PackedFormatRow;

// What ranks commit: each its own parts of blocks, in an order of its own; or all of them every block, in one
// order and with the same findings, and a block counts once all have it on the disk.
enum class Committed : std::uint8_t { kParts, kWholeBlocks };

class ModelWriter {
 public:
  virtual ~ModelWriter() = default;
  virtual void add_quantized(const std::string& module, const QuantizedMatrix& matrix) = 0;
  virtual void add_dense(const std::string& tensor, DType dtype, const Shape& shape,
                         std::span<const std::byte> bytes) = 0;
  // The next bytes of a tensor that comes in pieces, for those larger than there is memory. No commit() keeps
  // them: a run that goes on gives all of them again.
  virtual void append_dense(const std::string& tensor, DType dtype, const Shape& shape,
                            std::span<const std::byte> bytes) = 0;
  // One finished block: what was given since the last call is on the disk when it returns. `findings` come
  // back from committed() in the run that goes on.
  void commit(const Json& findings) { begin_commit(findings)(); }
  // The same in two steps: the function that comes back waits for the disk. It may run on another thread
  // while the writer is given more; the next one, and complete(), come after it has returned.
  virtual std::function<void()> begin_commit(const Json&) {
    return [] {};
  }
  // Puts everything given so far on the disk, in the same two steps, and keeps no record of it.
  virtual std::function<void()> begin_sync() {
    return [] {};
  }
  virtual std::vector<Json> committed() const { return {}; }
  virtual Ranks& ranks() const { return alone(); }
  // Whether this rank gives a dense tensor.
  virtual bool writes(const std::string&) const { return true; }
  // Whether it gives a packed one, of which something is neither given yet nor left by an interrupted run.
  virtual bool lacks_module(const std::string&) const { return true; }
  // Rank 0 records what every rank committed since, as far as it is on the disk by now. There the findings of
  // all; elsewhere, and of one process, which has recorded them itself, nothing. Of one thread on each rank.
  virtual std::vector<Json> share_committed(Committed) { return {}; }
  // The tensors as they stand; what belongs to committed() blocks is whole. Of all ranks.
  virtual Checkpoint written() const;
  // Everything that loaders read is whole after it; the output's digest (output_digest()), on every rank. The
  // directory it lies in.
  virtual std::string complete() = 0;
  virtual Path directory() const = 0;
  // Extra files (report.json, README.md, recipe.yaml) by name, then the manifest of all files when its text
  // can be made; then the name. Of a versioned output, the version, which becomes `latest` if `move_latest`.
  // Rank 0's to do; nothing elsewhere.
  virtual std::string publish(const std::vector<std::pair<std::string, std::string>>& extra_files,
                              const ManifestText& manifest = {}, bool move_latest = true) = 0;
  std::string finish(const std::vector<std::pair<std::string, std::string>>& extra_files,
                     const ManifestText& manifest = {}) {
    std::string digest = complete();
    publish(extra_files, manifest);
    return digest;
  }
  virtual std::uint64_t bytes() const = 0;  // of all shards, known from the declarations
};

// A writer that gives nothing a name: for those that only look at what is written.
class UnpublishedWriter : public ModelWriter {
 public:
  std::string complete() override { return {}; }
  Path directory() const override { return {}; }
  std::string publish(const std::vector<std::pair<std::string, std::string>>&, const ManifestText&,
                      bool) override {
    return {};
  }
  std::uint64_t bytes() const override { return 0; }
};

// Whether a tensor is a scale of a KV cache (kv_scale_name()), and no weight.
bool is_kv_scale(const std::string& name);

// The type in which a dense tensor is written: as stored; BF16 for a GGUF's block types, which safetensors
// does not have.
DType written_dtype(const StoredTensor& tensor);

// What is true of an output beside the schemes of its linears.
struct OutputTraits {
  // Where the format has a place for it: a k_scale and a v_scale, F32 [1], of every layer are dense tensors
  // to be given too.
  std::optional<KvCacheType> kv_cache = {};
  std::span<const RotatedHeads> rotated = {};  // told where the format has words for it
};

// Declares every tensor of the output: `modules` packed, every other tensor of the checkpoint dense as stored
// (F32 norm gains changed by a fold keep their stored dtype; written_dtype() says which). `ignored` are
// linears left dense, listed in the config by checkpoint names; an unpacked lm_head always is. The config's
// dtype becomes that of the scales, in which alone a loader computes the weights llmq computed.
std::unique_ptr<ModelWriter> open_writer(Io& io, const std::string& format, const OutputTarget& target,
                                         const Checkpoint& checkpoint, const ModelSpec& spec,
                                         std::span<const PlannedModule> modules,
                                         std::span<const std::string> ignored,
                                         const OutputTraits& traits = {});
// A directory of declared tensors as given (convert, merge); `format`, with `spec`, says what its loaders
// want beside them.
std::unique_ptr<ModelWriter> open_dense_writer(Io& io, const OutputTarget& target,
                                               const Checkpoint& checkpoint,
                                               std::vector<TensorDeclaration> tensors, Json config,
                                               const PackedFormatRow* format = nullptr,
                                               const ModelSpec* spec = nullptr);

// SHA-256 over the files that loaders read (weights, index, configs, tokenizer, processors):
// "sha256:<hex>" of the lines "<sha256 hex>  <name>\n" sorted by name, so that `sha256sum` over those files,
// hashed again, gives the same.
std::string output_digest(Io& io, const Path& directory);
std::string output_digest(std::span<const NamedDigest> files);  // the same from their digests
std::string output_digest(Io& io, const Path& directory,
                          const std::function<std::string(const Path&)>& sha256_of_file);

}  // namespace llmq
