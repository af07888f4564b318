// A Hugging Face model directory in the making: invisible under its own name until it is whole.
//
// Everything goes into the files/ of an unfinished output (export/output/unfinished_output.h): shards of at
// most shard_bytes, filled in any order; copies of the companion files; the index when there is more than one
// shard; config.json last. Room on disk is checked before the first byte.
//
// A record of the journal is {"tensors": {name: SHA-256}, "findings": ...}. A run that goes on believes a
// record only if the files hold those bytes: with the first that does not fit, it and those after it are done
// again.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/io.h"
#include "base/json.h"
#include "export/output/model_writer.h"
#include "export/output/unfinished_output.h"
#include "io/safetensors.h"

namespace llmq {

// What is known when the directory is opened. Tensors are cut into shards in the order given.
struct DirectoryContents {
  std::vector<TensorDeclaration> tensors;
  std::vector<Path> copies;                                // copied byte for byte under their own file names
  std::vector<std::pair<std::string, std::string>> texts;  // companion files made here: name, text
  std::string header_format = "pt";                        // of the shards' metadata
  std::uint64_t parameters = 0;  // above 0: the index says it, and is there beside a single shard, too
};

// Where one shard begins: tensors [first, first + count) of the declarations.
struct ShardRange {
  std::size_t first = 0, count = 0;
};
// At least one tensor a shard; header included, no shard of several tensors is larger than `shard_bytes`.
std::vector<ShardRange> split_shards(std::span<const TensorDeclaration> tensors, std::uint64_t shard_bytes);
// "model.safetensors" when alone, else "model-00002-of-00014.safetensors"; `index` from 0.
std::string shard_name(std::size_t index, std::size_t count);

class ModelDirectory {
 public:
  ModelDirectory(Io& io, const OutputTarget& target, const DirectoryContents& contents);
  ~ModelDirectory();
  ModelDirectory(const ModelDirectory&) = delete;
  ModelDirectory& operator=(const ModelDirectory&) = delete;

  // Error(kInternal) for a tensor that was not declared, of another type or shape, or given twice.
  void add(const std::string& name, DType dtype, const Shape& shape, std::span<const std::byte> bytes);
  // The next bytes of a tensor that comes in pieces; a run that goes on gives all of them again.
  void append(const std::string& name, DType dtype, const Shape& shape, std::span<const std::byte> bytes);
  std::function<void()> begin_commit(const Json& findings);  // as ModelWriter's
  std::function<void()> begin_sync();
  std::vector<Json> committed() const;
  Checkpoint written(const Json& config) const;
  // Returns the digest of the output. `texts`: files that loaders read beside config.json.
  std::string complete(const Json& config,
                       const std::vector<std::pair<std::string, std::string>>& texts = {});
  // The manifest, when there is one, is written last and knows the digest of every other file.
  std::string publish(const std::vector<std::pair<std::string, std::string>>& extra_files,
                      const ManifestText& manifest, bool move_latest);
  Path files() const { return place_.files(); }
  std::uint64_t bytes() const { return bytes_; }  // of all shards

 private:
  struct Slot {
    TensorDeclaration declaration;
    std::size_t shard = 0;
    bool given = false;
  };
  Slot& slot(const std::string& name, DType dtype, const Shape& shape, std::uint64_t bytes);
  void check_room(const DirectoryContents& contents, std::size_t shards) const;
  bool go_on(const DirectoryContents& contents);
  void open_shards(const DirectoryContents& contents, FilePlace place);
  bool accept(const Json& record);
  void write_file(const std::string& name, std::string_view text);
  void copy_file(const Path& from);
  void write_index();

  Io& io_;
  OutputTarget target_;
  UnfinishedOutput place_;
  std::uint64_t parameters_;  // DirectoryContents::parameters
  std::map<std::string, Slot> slots_;
  std::vector<SafetensorsWriter> shards_;
  std::vector<Path> shard_paths_;
  std::vector<Json> committed_;
  std::map<std::string, std::string> uncommitted_;  // SHA-256 of tensors given since, by name
  std::uint64_t bytes_ = 0, tensor_bytes_ = 0;
  std::vector<NamedDigest> digests_;  // of the files written, in that order
  std::string digest_;
};

}  // namespace llmq
