#include "export/output/model_directory.h"

#include <algorithm>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "export/output/published_output.h"

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
    : io_(io), target_(target), place_(io, target), parameters_(contents.parameters) {
  target_.directory = tidy_path(target.directory);
  for (const TensorDeclaration& tensor : contents.tensors) tensor_bytes_ += declared_bytes(tensor);
  if (place_.resumed() && !go_on(contents)) {
    Log::get().warn(fmt::format("{}: the files of an interrupted run are damaged; it starts again",
                                place_.files().string()));
    place_.start_over();
  }
  if (shards_.empty()) {
    check_room(contents, split_shards(contents.tensors, target_.shard_bytes).size());
    place_.start_over();
    open_shards(contents, FilePlace::kDirect);
  }
  for (const Path& copy : contents.copies) copy_file(copy);
  for (const auto& text : contents.texts) write_file(text.first, text.second);
  for (SafetensorsWriter& shard : shards_) shard.sync();
  place_.begin_journal();
}

ModelDirectory::~ModelDirectory() = default;

void ModelDirectory::check_room(const DirectoryContents& contents, std::size_t shards) const {
  std::uint64_t needed = tensor_bytes_ + shards * kShardSlack + kTextBytes;
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

// Shards reserve their room, so that what can fail fails before the work is done.
void ModelDirectory::open_shards(const DirectoryContents& contents, FilePlace place) {
  const std::vector<ShardRange> ranges = split_shards(contents.tensors, target_.shard_bytes);
  for (std::size_t s = 0; s < ranges.size(); ++s) {
    std::vector<TensorDeclaration> declarations;
    for (std::size_t i = ranges[s].first; i < ranges[s].first + ranges[s].count; ++i) {
      const TensorDeclaration& tensor = contents.tensors[i];
      if (!slots_.emplace(tensor.name, Slot{tensor, s}).second)
        fail(ErrorKind::kInternal,
             {"a tensor was declared twice", target_.directory.string(), tensor.name, {}});
      declarations.push_back(tensor);
    }
    const std::string name = shard_name(s, ranges.size());
    place_.add_created(name);
    shard_paths_.push_back(place_.files() / name);
    shards_.emplace_back(io_, shard_paths_.back(), std::move(declarations),
                         std::map<std::string, std::string>{{"format", contents.header_format}}, place);
    bytes_ += shards_.back().file_bytes();
  }
}

// Opens what an interrupted run left; false when it is not what its journal says and nothing was opened.
bool ModelDirectory::go_on(const DirectoryContents& contents) {
  try {
    open_shards(contents, FilePlace::kExisting);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo) throw;
    slots_.clear();
    shards_.clear();
    shard_paths_.clear();
    bytes_ = 0;
    return false;
  }
  for (const Json& record : place_.blocks()) {
    if (!accept(record)) break;
    committed_.push_back(record.at("findings"));
  }
  place_.keep_blocks(committed_.size());
  return true;
}

bool ModelDirectory::accept(const Json& record) {
  const Json::Object& tensors = record.at("tensors").members();
  for (const auto& [name, sha256] : tensors) {
    const auto slot = slots_.find(name);
    if (slot != slots_.end() && !slot->second.given &&
        shards_[slot->second.shard].holds(name, sha256.as_string()))
      continue;
    Log::get().warn(
        fmt::format("{}: {} is not what the journal says; its block and those after it are done again",
                    place_.files().string(), name));
    return false;
  }
  for (const auto& [name, sha256] : tensors) {
    Slot& slot = slots_.at(name);
    slot.given = true;
    shards_[slot.shard].accept(name);
  }
  return true;
}

std::function<void()> ModelDirectory::begin_commit(const Json& findings) {
  Json tensors = Json::object();
  for (const auto& [name, sha256] : uncommitted_) tensors.members().emplace_back(name, Json(sha256));
  uncommitted_.clear();
  return [this, sync = begin_sync(),
          record = Json::object({{"tensors", std::move(tensors)}, {"findings", findings}})] {
    sync();
    place_.add_block(record);
  };
}

std::function<void()> ModelDirectory::begin_sync() {
  std::vector<std::function<void()>> shards;
  for (SafetensorsWriter& shard : shards_) shards.push_back(shard.begin_sync());
  return [shards = std::move(shards)] {
    for (const std::function<void()>& sync : shards) sync();
  };
}

std::vector<Json> ModelDirectory::committed() const { return committed_; }

Checkpoint ModelDirectory::written(const Json& config) const {
  return Checkpoint::open_shards(io_, place_.files(), shard_paths_, config);
}

void ModelDirectory::write_file(const std::string& name, std::string_view text) {
  place_.add_created(name);
  io_.remove(place_.files() / name);  // of an interrupted run
  const std::unique_ptr<File> file = io_.create(place_.files() / name);
  file->write_at(0, std::as_bytes(std::span(text)));
  file->sync();
}

void ModelDirectory::copy_file(const Path& from) {
  constexpr std::uint64_t kStep = 4u << 20;
  place_.add_created(from.filename().string());
  io_.remove(place_.files() / from.filename());
  const std::unique_ptr<File> source = io_.open(from);
  const std::unique_ptr<File> copy = io_.create(place_.files() / from.filename());
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
  return found->second;
}

void ModelDirectory::add(const std::string& name, DType dtype, const Shape& shape,
                         std::span<const std::byte> bytes) {
  Slot& to = slot(name, dtype, shape, bytes.size());
  if (to.given)
    fail(ErrorKind::kInternal, {"a tensor was written twice", target_.directory.string(), name, {}});
  shards_[to.shard].add(name, bytes);
  to.given = true;
  if (!target_.job.is_null()) uncommitted_[name] = sha256_hex(bytes);
}

void ModelDirectory::append(const std::string& name, DType dtype, const Shape& shape,
                            std::span<const std::byte> bytes) {
  Slot& to = slot(name, dtype, shape, bytes.size());
  shards_[to.shard].append(name, bytes);
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

std::string ModelDirectory::complete(const Json& config,
                                     const std::vector<std::pair<std::string, std::string>>& texts) {
  for (const auto& [name, slot] : slots_)
    if (!slot.given)
      fail(ErrorKind::kInternal,
           {"a declared tensor was never written", target_.directory.string(), name, {}});
  for (SafetensorsWriter& shard : shards_) shard.finish();
  if (shards_.size() > 1 || parameters_ > 0) write_index();
  for (const auto& file : texts) write_file(file.first, file.second);
  write_file("config.json", config.dump(2) + "\n");
  digests_ = digests_of(io_, place_.files(), place_.created());
  digest_ = output_digest(digests_);
  return digest_;
}

std::string ModelDirectory::publish(const std::vector<std::pair<std::string, std::string>>& extra_files,
                                    const ManifestText& manifest, bool move_latest) {
  for (const auto& file : extra_files) write_file(file.first, file.second);
  if (manifest) {
    const std::span<const std::string> since = std::span(place_.created()).subspan(digests_.size());
    for (NamedDigest& digest : digests_of(io_, place_.files(), since)) digests_.push_back(std::move(digest));
    write_file(kManifestFile, manifest(digests_));
  }
  io_.sync_directory(place_.files());
  return place_.publish(digest_, move_latest);
}

}  // namespace llmq
