#include "export/output/model_directory.h"

#include <algorithm>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "export/output/published_output.h"
#include "ranks/agreement.h"

namespace llmq {
namespace {

std::uint64_t declared_bytes(const TensorDeclaration& tensor) {
  return TensorView(static_cast<const void*>(nullptr), tensor.dtype, tensor.shape).bytes();
}

// Not less than the tensor's line in a safetensors header: its name (escaped, at most six for one), dtype, up
// to eight extents, two offsets.
std::uint64_t header_bytes(const TensorDeclaration& tensor) { return 6 * tensor.name.size() + 320; }

constexpr std::uint64_t kShardSlack = 4096;  // length word, metadata, padding

constexpr std::uint64_t kTextBytes = 1u << 20;  // those of complete() and publish() stay far below

}  // namespace

std::vector<ShardRange> split_shards(std::span<const TensorDeclaration> tensors, std::uint64_t shard_bytes) {
  std::vector<ShardRange> shards;
  std::uint64_t filled = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t size = declared_bytes(tensors[i]) + header_bytes(tensors[i]);
    if (shards.empty() || filled + size + kShardSlack > shard_bytes) {
      shards.push_back({i, 0});
      filled = 0;
    }
    ++shards.back().count;
    filled += size;
  }
  if (shards.empty()) shards.push_back({0, 0});
  return shards;
}

std::string shard_name(std::size_t index, std::size_t count) {
  return count == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

ModelDirectory::ModelDirectory(Io& io, const OutputTarget& target, const DirectoryContents& contents)
    : io_(io),
      target_(target),
      ranks_(ranks_of(target)),
      header_format_(contents.header_format),
      parameters_(contents.parameters),
      records_(ranks_) {
  target_.directory = tidy_path(target.directory);
  std::string probe;
  first_begins(ranks_, [&] {
    lay_out(contents);
    place_.emplace(io_, target);
    if (ranks_.size() > 1) probe = place_->lay_probe();
  });
  if (ranks_.size() > 1) probe = broadcast_text(ranks_, 0, probe);
  begin_together(ranks_, [&] {
    if (!place_) lay_out(contents);
    files_ = place_ ? place_->files() : seen_files(io_, target_, probe);
  });
  first_begins(ranks_, [&] {
    place_->remove_probe();
    make_files(contents);
  });
  begin_together(ranks_, [&] { find_files(); });
  take_records();
  if (place_ && ranks_.size() > 1) tell_shares();
}

ModelDirectory::~ModelDirectory() = default;

void ModelDirectory::tell_shares() const {
  const auto ranks = static_cast<std::size_t>(ranks_.size()), shards = shards_.size();
  std::string told = fmt::format("{} ranks share {} shard{}", ranks, shards, shards == 1 ? "" : "s");
  if (ranks > shards)
    told += fmt::format("; {} of them write{} none, for one rank writes a shard: smaller ones are more",
                        ranks - shards, ranks - shards == 1 ? "s" : "");
  Log::get().note(told);
}

bool ModelDirectory::is_own(std::size_t shard) const {
  return shard % static_cast<std::size_t>(ranks_.size()) == static_cast<std::size_t>(ranks_.rank());
}

// What lies in which shard, of which name.
void ModelDirectory::lay_out(const DirectoryContents& contents) {
  const std::vector<ShardRange> ranges = split_shards(contents.tensors, target_.shard_bytes);
  for (std::size_t s = 0; s < ranges.size(); ++s) {
    std::vector<TensorDeclaration>& declarations = layout_.emplace_back();
    for (std::size_t i = ranges[s].first; i < ranges[s].first + ranges[s].count; ++i) {
      const TensorDeclaration& tensor = contents.tensors[i];
      if (!slots_.emplace(tensor.name, Slot{tensor, s}).second)
        fail(ErrorKind::kInternal,
             {"a tensor was declared twice", target_.directory.string(), tensor.name, {}});
      declarations.push_back(tensor);
      tensor_bytes_ += declared_bytes(tensor);
    }
  }
  shards_.resize(layout_.size());
}

void ModelDirectory::check_room(const DirectoryContents& contents) const {
  std::uint64_t needed = tensor_bytes_ + layout_.size() * kShardSlack + kTextBytes;
  for (const TensorDeclaration& tensor : contents.tensors)
    needed += 2 * header_bytes(tensor);  // once more in the index
  for (const Path& copy : contents.copies) needed += io_.open(copy)->size();
  for (const auto& text : contents.texts) needed += text.second.size();
  const std::uint64_t available = io_.free_bytes(parent_of(target_.directory));
  if (available >= needed) return;
  fail(ErrorKind::kIo, {fmt::format("the output needs {} and the disk has {} free", bytes_text(needed),
                                    bytes_text(available)),
                        target_.directory.string(),
                        {},
                        "free some space, or name an output directory on another disk"});
}

void ModelDirectory::open_shard(std::size_t shard, FilePlace place) {
  shards_[shard].emplace(io_, files_ / shard_name(shard, layout_.size()), layout_[shard],
                         std::map<std::string, std::string>{{"format", header_format_}}, place);
}

// All of them, which reserve their room, so that what can fail fails before the work is done. False for what
// an interrupted run left and is not what its journal says; then none is open.
bool ModelDirectory::open_shards(FilePlace place) {
  try {
    for (std::size_t s = 0; s < shards_.size(); ++s) {
      if (place == FilePlace::kDirect) place_->add_created(shard_name(s, shards_.size()));
      open_shard(s, place);
    }
  } catch (const Error& error) {
    if (place == FilePlace::kDirect || error.kind() == ErrorKind::kIo) throw;
    for (std::optional<SafetensorsWriter>& shard : shards_) shard.reset();
    return false;
  }
  if (place == FilePlace::kExisting)
    for (std::size_t s = 0; s < shards_.size(); ++s) place_->add_created(shard_name(s, shards_.size()));
  return true;
}

// Rank 0's part of the beginning: every file at its size, and a journal.
void ModelDirectory::make_files(const DirectoryContents& contents) {
  bool goes_on = place_->resumed();
  if (goes_on && !open_shards(FilePlace::kExisting)) {
    Log::get().warn(
        fmt::format("{}: the files of an interrupted run are damaged; it starts again", files_.string()));
    place_->start_over();
    goes_on = false;
  }
  if (!goes_on) {
    check_room(contents);
    place_->start_over();
    open_shards(FilePlace::kDirect);
  }
  for (const Path& copy : contents.copies) copy_file(copy);
  for (const auto& text : contents.texts) write_file(text.first, text.second);
  for (std::optional<SafetensorsWriter>& shard : shards_) shard->sync();
  place_->begin_journal();
}

// Each rank has its own shards open from here on.
void ModelDirectory::find_files() {
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    shard_paths_.push_back(files_ / shard_name(s, shards_.size()));
    if (!shards_[s]) {
      if (is_own(s)) open_shard(s, FilePlace::kExisting);
    } else {
      bytes_ += shards_[s]->file_bytes();
      if (!is_own(s)) shards_[s].reset();
    }
  }
}

// What an interrupted run recorded counts up to the first record that the files do not bear out. Each rank
// looks at its own shards.
void ModelDirectory::take_records() {
  std::vector<Json> records = place_ ? place_->blocks() : std::vector<Json>();
  if (ranks_.size() > 1) {
    ranks_.broadcast(0, std::as_writable_bytes(std::span(&bytes_, 1)));
    const std::string text = broadcast_text(ranks_, 0, place_ ? Json(Json::Array(records)).dump() : "");
    if (!place_) records = Json::parse(text, files_.string()).items();
  }
  std::set<std::string> seen;
  std::size_t fit = 0;
  while (fit < records.size() && holds(records[fit], seen)) ++fit;
  fit = static_cast<std::size_t>(-most_of(ranks_, -static_cast<std::int64_t>(fit)));
  for (std::size_t i = 0; i < fit; ++i) {
    for (const auto& tensor : records[i].at("tensors").members()) {
      Slot& slot = slots_.at(tensor.first);
      slot.given = true;
      if (is_own(slot.shard)) shards_[slot.shard]->accept(tensor.first);
    }
    committed_.push_back(records[i].at("findings"));
  }
  if (place_ && fit < records.size()) place_->keep_blocks(fit);
}

bool ModelDirectory::holds(const Json& record, std::set<std::string>& seen) const {
  for (const auto& tensor : record.at("tensors").members()) {
    const auto slot = slots_.find(tensor.first);
    if (slot != slots_.end() && seen.insert(tensor.first).second &&
        (!is_own(slot->second.shard) ||
         shards_[slot->second.shard]->holds(tensor.first, tensor.second.as_string())))
      continue;
    Log::get().warn(
        fmt::format("{}: {} is not what the journal says; its block and those after it are done again",
                    files_.string(), tensor.first));
    return false;
  }
  return true;
}

bool ModelDirectory::writes(const std::string& name) const {
  const auto slot = slots_.find(name);
  return slot == slots_.end() || is_own(slot->second.shard);
}

bool ModelDirectory::lacks(const std::string& name) const {
  const auto slot = slots_.find(name);
  return slot == slots_.end() || (is_own(slot->second.shard) && !slot->second.given);
}

std::function<void()> ModelDirectory::begin_commit(const Json& findings) {
  Json tensors = Json::object();
  for (const auto& [name, sha256] : uncommitted_) tensors.members().emplace_back(name, Json(sha256));
  uncommitted_.clear();
  return [this, sync = begin_sync(),
          record = Json::object({{"tensors", std::move(tensors)}, {"findings", findings}})] {
    sync();
    if (ranks_.size() == 1) return place_->add_block(record);
    records_.add(record);
  };
}

std::vector<Json> ModelDirectory::share_committed(Committed what) {
  std::vector<Json> findings;
  if (ranks_.size() == 1) return findings;
  for (const Json& record : records_.take(what)) {
    place_->add_block(record);
    findings.push_back(record.at("findings"));
  }
  return findings;
}

std::function<void()> ModelDirectory::begin_sync() {
  std::vector<std::function<void()>> shards;
  for (std::optional<SafetensorsWriter>& shard : shards_)
    if (shard) shards.push_back(shard->begin_sync());
  return [shards = std::move(shards)] {
    for (const std::function<void()>& sync : shards) sync();
  };
}

std::vector<Json> ModelDirectory::committed() const { return committed_; }

Checkpoint ModelDirectory::written(const Json& config) const {
  return Checkpoint::open_shards(io_, files_, shard_paths_, config);
}

void ModelDirectory::write_file(const std::string& name, std::string_view text) {
  place_->add_created(name);
  io_.remove(files_ / name);  // of an interrupted run
  const std::unique_ptr<File> file = io_.create(files_ / name);
  file->write_at(0, std::as_bytes(std::span(text)));
  file->sync();
}

void ModelDirectory::copy_file(const Path& from) {
  constexpr std::uint64_t kStep = 4u << 20;
  place_->add_created(from.filename().string());
  io_.remove(files_ / from.filename());
  const std::unique_ptr<File> source = io_.open(from);
  const std::unique_ptr<File> copy = io_.create(files_ / from.filename());
  const std::uint64_t size = source->size();
  std::vector<std::byte> step(static_cast<std::size_t>(std::min(size, kStep)));
  for (std::uint64_t offset = 0; offset < size; offset += step.size()) {
    const auto part =
        std::span(step).first(static_cast<std::size_t>(std::min<std::uint64_t>(step.size(), size - offset)));
    source->read_at(offset, part);
    copy->write_at(offset, part);
  }
  copy->sync();
}

// The slot of a declared tensor, of which `bytes` bytes come.
ModelDirectory::Slot& ModelDirectory::slot(const std::string& name, DType dtype, const Shape& shape,
                                           std::uint64_t bytes) {
  const auto found = slots_.find(name);
  const auto refuse = [&](const std::string& message) {
    fail(ErrorKind::kInternal, {message, target_.directory.string(), name, {}});
  };
  if (found == slots_.end()) refuse("a tensor was written that was not declared");
  const TensorDeclaration& declared = found->second.declaration;
  if (declared.dtype != dtype || !(declared.shape == shape) || bytes > declared_bytes(declared))
    refuse(fmt::format("{} {} with {} bytes was written where {} {} was declared", dtype_row(dtype).name,
                       shape.text(), bytes, dtype_row(declared.dtype).name, declared.shape.text()));
  if (!is_own(found->second.shard)) refuse("a tensor of another rank's shard was written");
  return found->second;
}

void ModelDirectory::add(const std::string& name, DType dtype, const Shape& shape,
                         std::span<const std::byte> bytes) {
  Slot& to = slot(name, dtype, shape, bytes.size());
  if (to.given)
    fail(ErrorKind::kInternal, {"a tensor was written twice", target_.directory.string(), name, {}});
  shards_[to.shard]->add(name, bytes);
  to.given = true;
  if (!target_.job.is_null()) uncommitted_[name] = sha256_hex(bytes);
}

void ModelDirectory::append(const std::string& name, DType dtype, const Shape& shape,
                            std::span<const std::byte> bytes) {
  Slot& to = slot(name, dtype, shape, bytes.size());
  shards_[to.shard]->append(name, bytes);
  to.given = true;  // how much of it came is the shard's to know
}

void ModelDirectory::write_index() {
  Json weights = Json::object();
  for (const auto& [name, slot] : slots_)
    weights.members().emplace_back(name, Json(shard_name(slot.shard, shards_.size())));
  Json index = Json::object();
  index["metadata"] = Json::object({{"total_size", Json(tensor_bytes_)}});
  if (parameters_ > 0) index["metadata"]["total_parameters"] = Json(parameters_);
  index["weight_map"] = std::move(weights);
  write_file("model.safetensors.index.json", index.dump(2) + "\n");
}

// Of all shards at rank 0, each read by the rank that wrote it; elsewhere of its own.
std::vector<NamedDigest> ModelDirectory::shard_digests() const {
  std::vector<std::string> own;
  for (std::size_t s = 0; s < shards_.size(); ++s)
    if (is_own(s)) own.push_back(shard_name(s, shards_.size()));
  std::vector<NamedDigest> digests = digests_of(io_, files_, own);
  if (ranks_.size() == 1) return digests;
  Json list = Json::array();
  for (const NamedDigest& one : digests) list.push_back(Json::array({one.name, Json(one.bytes), one.sha256}));
  digests.clear();
  for (const Json& one : gathered_items(ranks_, list))
    digests.push_back({one.items()[0].as_string(), static_cast<std::uint64_t>(one.items()[1].as_integer()),
                       one.items()[2].as_string()});
  return digests;
}

std::string ModelDirectory::complete(const Json& config,
                                     const std::vector<std::pair<std::string, std::string>>& texts) {
  for (const auto& [name, slot] : slots_)
    if (is_own(slot.shard) && !slot.given)
      fail(ErrorKind::kInternal,
           {"a declared tensor was never written", target_.directory.string(), name, {}});
  for (std::optional<SafetensorsWriter>& shard : shards_)
    if (shard) shard->finish();
  const std::vector<NamedDigest> shards = shard_digests();
  if (place_) {
    if (shards_.size() > 1 || parameters_ > 0) write_index();
    for (const auto& file : texts) write_file(file.first, file.second);
    write_file("config.json", config.dump(2) + "\n");
    for (const std::string& name : place_->created()) {
      const auto known = std::find_if(shards.begin(), shards.end(),
                                      [&](const NamedDigest& one) { return one.name == name; });
      digests_.push_back(known != shards.end() ? *known : digests_of(io_, files_, {&name, 1}).front());
    }
    digest_ = output_digest(digests_);
  }
  if (ranks_.size() > 1) digest_ = broadcast_text(ranks_, 0, digest_);
  return digest_;
}

std::string ModelDirectory::publish(const std::vector<std::pair<std::string, std::string>>& extra_files,
                                    const ManifestText& manifest, bool move_latest) {
  if (!place_) return {};
  for (const auto& file : extra_files) write_file(file.first, file.second);
  if (manifest) {
    const std::span<const std::string> since = std::span(place_->created()).subspan(digests_.size());
    for (NamedDigest& digest : digests_of(io_, files_, since)) digests_.push_back(std::move(digest));
    write_file(kManifestFile, manifest(digests_));
  }
  io_.sync_directory(files_);
  return place_->publish(digest_, move_latest);
}

}  // namespace llmq
