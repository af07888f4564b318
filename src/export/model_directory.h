// A Hugging Face model directory in the making: invisible under its own name until it is whole.
//
// Everything goes into "<output>.partial-<pid>" beside the target: shards of at most shard_bytes, filled in
// any order; the index when there is more than one; copies of the companion files; config.json last. finish()
// syncs every file and the directory and renames it into place. Whatever throws before that removes the
// partial directory; a kill leaves it behind, and nothing else; the next run to the same target removes it. Room on disk is checked before the first
// byte.
//
// The target may be missing, an empty directory, or (with `overwrite`) an earlier output of llmq: a directory
// with config.json and a report.json whose schema is "llmq.report/1", and without directories inside. Such an
// output is moved aside, replaced, and only then removed. Anything else is refused.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/io.h"
#include "base/json.h"
#include "export/model_writer.h"
#include "io/safetensors.h"

namespace llmq {

inline constexpr const char* kReportFile = "report.json";
inline constexpr const char* kReportSchema = "llmq.report/1";

// What is known when the directory is opened. Tensors are cut into shards in the order given.
struct DirectoryContents {
  std::vector<TensorDeclaration> tensors;
  std::vector<Path> copies;                                // copied byte for byte under their own file names
  std::vector<std::pair<std::string, std::string>> texts;  // companion files made here: name, text
};

// Where one shard begins: tensors [first, first + count) of the declarations.
struct ShardRange {
  std::size_t first = 0, count = 0;
};
// At least one tensor a shard; header included, no shard of several tensors is larger than `shard_bytes`.
std::vector<ShardRange> split_shards(std::span<const TensorDeclaration> tensors, std::uint64_t shard_bytes);
// "model.safetensors" when alone, else "model-00002-of-00014.safetensors"; `index` from 0.
std::string shard_name(std::size_t index, std::size_t count);

// Error(kUsage) when `target` may not be written (the rules above).
void check_output_directory(Io& io, const OutputTarget& target);

class ModelDirectory {
 public:
  ModelDirectory(Io& io, const OutputTarget& target, const DirectoryContents& contents);
  ~ModelDirectory();
  ModelDirectory(const ModelDirectory&) = delete;
  ModelDirectory& operator=(const ModelDirectory&) = delete;

  // Error(kInternal) for a tensor that was not declared, of another type or shape, or given twice.
  void add(const std::string& name, DType dtype, const Shape& shape, std::span<const std::byte> bytes);
  // The manifest, when there is one, is written last and knows the digest of every other file.
  void finish(const Json& config, const std::vector<std::pair<std::string, std::string>>& extra_files,
              const ManifestText& manifest = {});
  std::uint64_t bytes() const { return bytes_; }  // of all shards

 private:
  struct Slot {
    TensorDeclaration declaration;
    std::size_t shard = 0;
    bool given = false;
  };
  void fill(const DirectoryContents& contents);
  void write_file(const std::string& name, std::string_view text);
  void copy_file(const Path& from);
  void remove_written(const Path& directory);
  void write_index();
  void publish();
  void take_back(bool published) noexcept;

  Io& io_;
  OutputTarget target_;
  Path partial_, previous_;
  std::vector<std::string> written_;  // names inside partial_
  std::map<std::string, Slot> slots_;
  std::vector<SafetensorsWriter> shards_;
  std::uint64_t bytes_ = 0, tensor_bytes_ = 0;
  bool whole_ = false;
};

}  // namespace llmq
