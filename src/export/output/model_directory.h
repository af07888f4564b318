// A Hugging Face model directory in the making: invisible under its own name until it is whole.
//
// Everything goes into the files/ of an unfinished output (export/output/unfinished_output.h): shards of at
// most shard_bytes, filled in any order; copies of the companion files; the index when there is more than one
// shard; config.json last. Room on disk is checked before the first byte.
//
// A record of the journal is {"tensors": {name: SHA-256}, "findings": ...}. A run that goes on believes a
// record only if the files hold those bytes: with the first that does not fit, it and those after it are done
// again.
//
// Several ranks write one directory: shard i is that of rank i mod N, and nobody else writes to it. Rank 0
// lays out all files before, holds lock and journal, and writes all else; the others find its files by the
// same names. So shards carry the bytes of one process, and a record may be of any rank's part of a block:
// whoever goes on with it, of however many, asks lacks() of each tensor. A rank reads and hashes its own
// shards alone. Traffic: the records, which go to rank 0, and those of before, from there.
//
// Where ranks do not all see one directory (export/output/output_places.h), each place has a directory in the
// making, whose lead holds lock and journal there and lays out the shards of the place's ranks; rank 0 still
// lays out all. Every lead keeps the whole journal. complete() gathers the others' shards into rank 0's files
// and then throws away what lies elsewhere. A run that goes on leaves a shard where most of it is. Traffic on
// top: the records to all; the shards, once; and what is written so far, to every place, for written().
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/io.h"
#include "base/json.h"
#include "export/output/model_writer.h"
#include "export/output/output_places.h"
#include "export/output/shard_layout.h"
#include "export/output/shared_records.h"
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

class ModelDirectory {
 public:
  ModelDirectory(Io& io, const OutputTarget& target, const DirectoryContents& contents);
  ~ModelDirectory();
  ModelDirectory(const ModelDirectory&) = delete;
  ModelDirectory& operator=(const ModelDirectory&) = delete;

  // Whether the tensor lies in a shard of this rank; whether it does and is neither given nor left by an
  // interrupted run. Of one that was not declared: true, which add() refuses.
  bool writes(const std::string& name) const;
  bool lacks(const std::string& name) const;
  Ranks& ranks() const { return ranks_; }
  std::vector<Json> share_committed(Committed what);  // as ModelWriter's

  // Error(kInternal) for a tensor that was not declared, of another type or shape, or given twice; of several
  // ranks, for one of another's shard.
  void add(const std::string& name, DType dtype, const Shape& shape, std::span<const std::byte> bytes);
  // The next bytes of a tensor that comes in pieces; a run that goes on gives all of them again.
  void append(const std::string& name, DType dtype, const Shape& shape, std::span<const std::byte> bytes);
  std::function<void()> begin_commit(const Json& findings);  // as ModelWriter's
  std::function<void()> begin_sync();
  std::vector<Json> committed() const;
  // Of all ranks: what a place lacks of the files is brought there.
  Checkpoint written(const Json& config) const;
  // Returns the digest of the output. `texts`: files that loaders read beside config.json.
  std::string complete(const Json& config,
                       const std::vector<std::pair<std::string, std::string>>& texts = {});
  // The manifest, when there is one, is written last and knows the digest of every other file.
  std::string publish(const std::vector<std::pair<std::string, std::string>>& extra_files,
                      const ManifestText& manifest, bool move_latest);
  Path files() const { return files_; }
  std::uint64_t bytes() const { return bytes_; }  // of all shards

 private:
  struct Slot {
    TensorDeclaration declaration;
    std::size_t shard = 0;
    bool given = false;
  };
  Slot& slot(const std::string& name, DType dtype, const Shape& shape, std::uint64_t bytes);
  bool is_first() const { return ranks_.rank() == 0; }
  bool is_own(std::size_t shard) const { return owners_[shard] == ranks_.rank(); }
  // Whether the shard is written in another place than `place`.
  bool is_elsewhere(std::size_t shard, int place) const { return places_.of(owners_[shard]) != place; }
  std::string name_of(std::size_t shard) const { return shard_name(shard, layout_.size()); }
  void lay_out(const DirectoryContents& contents);
  std::vector<std::int64_t> look_at_shards(std::span<const Json> records);
  SafetensorsWriter open_shard(std::size_t shard, FilePlace place) const;
  std::optional<SafetensorsWriter> find_shard(std::size_t shard) const;
  SafetensorsWriter make_shard(std::size_t shard) const;
  void take(std::optional<SafetensorsWriter> found, std::size_t shard) {
    if (found) shards_[shard].emplace(std::move(*found));
  }
  void write_companions(const DirectoryContents& contents);
  void check_room(std::span<const std::size_t> missing, const DirectoryContents* beside) const;
  void make_files(const DirectoryContents& contents);
  void find_files();
  void take_records(std::span<const Json> records);
  void tell_shares() const;
  bool holds(const Json& record, std::set<std::string>& seen) const;
  void spread_shards() const;
  void gather_shards(std::span<const NamedDigest> found);
  std::vector<NamedDigest> shard_digests() const;
  void write_file(const std::string& name, std::string_view text);

  Io& io_;
  OutputTarget target_;
  Ranks& ranks_;
  std::optional<UnfinishedOutput> place_;  // at the rank that leads it
  OutputPlaces places_;
  std::vector<int> owners_;  // the rank that writes each shard
  Path files_;
  std::string header_format_;  // DirectoryContents'
  std::uint64_t parameters_;
  std::map<std::string, Slot> slots_;
  std::vector<std::vector<TensorDeclaration>> layout_;    // by shard
  std::vector<std::optional<SafetensorsWriter>> shards_;  // none for those of other ranks
  std::vector<Path> shard_paths_;
  std::set<std::string> held_;  // recorded tensors that lie in the shards which this rank has looked at
  std::set<std::size_t> recorded_shards_;  // with a tensor of committed_
  std::vector<Json> committed_;
  std::map<std::string, std::string> uncommitted_;  // SHA-256 of tensors given since, by name
  SharedRecords records_;                           // of what is on the disk
  std::uint64_t bytes_ = 0;
  std::vector<NamedDigest> digests_;  // of the files written, in that order
  std::string digest_;
};

}  // namespace llmq
