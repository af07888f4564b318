#include "export/output/model_directory.h"

#include <algorithm>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "export/output/published_output.h"
#include "export/output/shard_gathering.h"
#include "export/output/synced_files.h"
#include "ranks/agreement.h"

namespace llmq {
namespace {

constexpr std::uint64_t kTextBytes = 1u << 20;  // those of complete() and publish() stay far below

// Null where there is none of that name.
const NamedDigest* digest_named(std::span<const NamedDigest> digests, const std::string& name) {
  const auto found =
      std::find_if(digests.begin(), digests.end(), [&](const NamedDigest& one) { return one.name == name; });
  return found == digests.end() ? nullptr : &*found;
}

}  // namespace

ModelDirectory::ModelDirectory(Io& io, const OutputTarget& target, const DirectoryContents& contents)
    : io_(io),
      target_(target),
      ranks_(ranks_of(target)),
      header_format_(contents.header_format),
      parameters_(contents.parameters),
      records_(ranks_) {
  target_.directory = tidy_path(target.directory);
  lay_out(contents);
  places_ = find_places(io_, target_, place_);
  files_ = unfinished_files(target_);
  const std::vector<Json> records =
      longest_records(ranks_, places_, place_ ? place_->blocks() : std::vector<Json>());
  std::vector<std::int64_t> held;  // by shard
  if (!records.empty()) begin_together(ranks_, [&] { held = look_at_shards(records); });
  owners_ = deal_shards(ranks_, places_, layout_.size(), held);
  begin_together(ranks_, [&] {
    if (place_) make_files(contents);
  });
  begin_together(ranks_, [&] { find_files(); });
  take_records(records);
  if (is_first() && ranks_.size() > 1) tell_shares();
}

ModelDirectory::~ModelDirectory() = default;

void ModelDirectory::tell_shares() const {
  const auto ranks = static_cast<std::size_t>(ranks_.size()), shards = layout_.size();
  std::string told = fmt::format("{} ranks share {} shard{}", ranks, shards, shards == 1 ? "" : "s");
  if (ranks > shards)
    told += fmt::format("; {} of them write{} none, for one rank writes a shard: smaller ones are more",
                        ranks - shards, ranks - shards == 1 ? "s" : "");
  Log::get().note(told);
  if (places_.count() == 1) return;
  std::uint64_t bytes = 0, count = 0;
  for (std::size_t s = 0; s < shards; ++s)
    if (is_elsewhere(s, 0)) bytes += most_shard_bytes(layout_[s]), ++count;
  std::string leads;
  for (std::size_t place = 1; place < places_.count(); ++place)
    leads += (place == 1 ? "" : place + 1 == places_.count() ? " and " : ", ") + places_.lead_texts[place];
  Log::get().note(fmt::format(
      "{} places: the output directory of {} is another one than rank 0's; {} of {} shard{}, {}, {} written "
      "elsewhere and gathered at the end",
      places_.count(), leads, count, shards, shards == 1 ? "" : "s", bytes_text(bytes),
      count == 1 ? "is" : "are"));
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
    }
  }
  shards_.resize(layout_.size());
}

// `beside`: whose companions and index come, too.
void ModelDirectory::check_room(std::span<const std::size_t> missing, const DirectoryContents* beside) const {
  std::uint64_t needed = kTextBytes;
  for (const std::size_t s : missing) needed += most_shard_bytes(layout_[s]);
  if (beside != nullptr) {
    needed += most_index_bytes(beside->tensors);
    for (const Path& copy : beside->copies) needed += io_.open(copy)->size();
    for (const auto& text : beside->texts) needed += text.second.size();
  }
  const std::uint64_t available = io_.free_bytes(parent_of(target_.directory));
  if (available >= needed) return;
  fail(ErrorKind::kIo, {fmt::format("the output needs {} and the disk has {} free", bytes_text(needed),
                                    bytes_text(available)),
                        target_.directory.string(),
                        {},
                        "free some space, or name an output directory on another disk"});
}

// Which recorded tensors lie in the shards that are this rank's where they are of its place; how many, by
// shard.
std::vector<std::int64_t> ModelDirectory::look_at_shards(std::span<const Json> records) {
  const int place = places_.of(ranks_.rank());
  std::vector<std::int64_t> held(layout_.size(), 0);
  for (std::size_t s = 0; s < layout_.size(); ++s)
    if (places_.dealt_to(place, s) == ranks_.rank()) take(find_shard(s), s);
  for (const Json& record : records)
    for (const auto& [name, sha256] : record.at("tensors").members()) {
      const auto slot = slots_.find(name);
      if (slot == slots_.end() || !shards_[slot->second.shard]) continue;
      if (!shards_[slot->second.shard]->holds(name, sha256.as_string())) continue;
      if (held_.insert(name).second) ++held[slot->second.shard];
    }
  for (std::optional<SafetensorsWriter>& shard : shards_) shard.reset();
  return held;
}

SafetensorsWriter ModelDirectory::open_shard(std::size_t shard, FilePlace place) const {
  return {io_, files_ / name_of(shard), layout_[shard], {{"format", header_format_}}, place};
}

// What an interrupted run left of it; none where that is nothing, or nothing of this layout.
std::optional<SafetensorsWriter> ModelDirectory::find_shard(std::size_t shard) const {
  if (!io_.exists(files_ / name_of(shard))) return std::nullopt;
  try {
    return open_shard(shard, FilePlace::kExisting);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo) throw;
    return std::nullopt;
  }
}

// New, and every byte of room with it.
SafetensorsWriter ModelDirectory::make_shard(std::size_t shard) const {
  const Path file = files_ / name_of(shard);
  if (io_.exists(file)) {
    Log::get().warn(fmt::format("{}: an interrupted run left it damaged; it is made again", file.string()));
    io_.remove(file);
  }
  return open_shard(shard, FilePlace::kDirect);
}

void ModelDirectory::write_companions(const DirectoryContents& contents) {
  for (const Path& copy : contents.copies) {
    place_->add_created(copy.filename().string());
    copy_synced(io_, copy, files_ / copy.filename());
  }
  for (const auto& text : contents.texts) write_file(text.first, text.second);
}

// A lead's part of the beginning: every file of its place at its size, so that what can fail fails before the
// work is done, and a journal.
void ModelDirectory::make_files(const DirectoryContents& contents) {
  place_->remove_probe();
  const int here = places_.of(ranks_.rank());
  std::vector<std::size_t> missing;
  for (std::size_t s = 0; s < layout_.size(); ++s) {
    if (!is_first() && is_elsewhere(s, here)) continue;
    if (place_->resumed()) take(find_shard(s), s);
    if (!shards_[s]) missing.push_back(s);
  }
  if (!missing.empty()) check_room(missing, is_first() ? &contents : nullptr);
  if (!place_->resumed()) place_->start_over();
  for (std::size_t s = 0; s < layout_.size(); ++s)
    if (shards_[s]) place_->add_created(name_of(s));
  for (const std::size_t s : missing) {
    place_->add_created(name_of(s));
    take(make_shard(s), s);
  }
  if (is_first()) write_companions(contents);
  for (std::optional<SafetensorsWriter>& shard : shards_)
    if (shard) shard->sync();
  place_->begin_journal();
}

// Each rank has its own shards open from here on.
void ModelDirectory::find_files() {
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    shard_paths_.push_back(files_ / name_of(s));
    if (shards_[s]) bytes_ += shards_[s]->file_bytes();
    if (shards_[s] && !is_own(s)) shards_[s].reset();
    if (!shards_[s] && is_own(s)) take(open_shard(s, FilePlace::kExisting), s);
  }
}

// What an interrupted run recorded counts up to the first record that the files do not bear out. Each rank
// knows of its own shards.
void ModelDirectory::take_records(std::span<const Json> records) {
  if (ranks_.size() > 1) ranks_.broadcast(0, std::as_writable_bytes(std::span(&bytes_, 1)));
  std::set<std::string> seen;
  std::size_t fit = 0;
  while (fit < records.size() && holds(records[fit], seen)) ++fit;
  fit = static_cast<std::size_t>(-most_of(ranks_, -static_cast<std::int64_t>(fit)));
  for (const Json& record : records.first(fit)) {
    for (const auto& tensor : record.at("tensors").members()) {
      Slot& slot = slots_.at(tensor.first);
      slot.given = true;
      recorded_shards_.insert(slot.shard);
      if (is_own(slot.shard)) shards_[slot.shard]->accept(tensor.first);
    }
    committed_.push_back(record.at("findings"));
  }
  if (place_) place_->set_blocks(records.first(fit));
}

bool ModelDirectory::holds(const Json& record, std::set<std::string>& seen) const {
  for (const auto& tensor : record.at("tensors").members()) {
    const auto slot = slots_.find(tensor.first);
    if (slot != slots_.end() && seen.insert(tensor.first).second &&
        (!is_own(slot->second.shard) || held_.count(tensor.first) != 0))
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
  std::vector<Json> records = records_.take(what);
  if (places_.count() > 1) records = broadcast_json(ranks_, 0, Json(Json::Array(std::move(records)))).items();
  for (const Json& record : records) {
    if (place_) place_->add_block(record);
    if (is_first()) findings.push_back(record.at("findings"));
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
  if (places_.count() > 1) spread_shards();
  return Checkpoint::open_shards(io_, files_, shard_paths_, config);
}

// What a place lacks of the shards that have something in them; the others are laid out there.
void ModelDirectory::spread_shards() const {
  const int here = places_.of(ranks_.rank());
  std::vector<std::size_t> missing;
  for (std::size_t s = 0; place_ && s < layout_.size(); ++s)
    if (is_elsewhere(s, here) && !find_shard(s)) missing.push_back(s);
  if (!missing.empty()) check_room(missing, nullptr);
  for (const std::size_t s : missing) make_shard(s);
  for (const std::size_t s : recorded_shards_)
    spread_file(ranks_, io_, owners_[s], shard_paths_[s], place_ && is_elsewhere(s, here));
  ranks_.barrier();
}

// Those of other places into rank 0's files. `found`: their digests, at rank 0.
void ModelDirectory::gather_shards(std::span<const NamedDigest> found) {
  for (std::size_t s = 0; s < layout_.size(); ++s) {
    if (!is_elsewhere(s, 0)) continue;
    const NamedDigest* const known = digest_named(found, name_of(s));
    gather_file(ranks_, io_, owners_[s], shard_paths_[s], known == nullptr ? "" : known->sha256);
  }
}

void ModelDirectory::write_file(const std::string& name, std::string_view text) {
  place_->add_created(name);
  write_synced(io_, files_ / name, text);
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
  if (declared.dtype != dtype || !(declared.shape == shape) || bytes > declared_bytes({&declared, 1}))
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

// Of all shards at rank 0, each read by the rank that wrote it; elsewhere of its own.
std::vector<NamedDigest> ModelDirectory::shard_digests() const {
  std::vector<std::string> own;
  for (std::size_t s = 0; s < shards_.size(); ++s)
    if (is_own(s)) own.push_back(name_of(s));
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
  for (std::optional<SafetensorsWriter>& shard : shards_) {
    if (shard) shard->finish();
    shard.reset();  // NFS does not let go of a directory whose file is open
  }
  const std::vector<NamedDigest> shards = shard_digests();
  gather_shards(shards);
  if (is_first()) {
    if (layout_.size() > 1 || parameters_ > 0)
      write_file("model.safetensors.index.json", index_text(layout_, parameters_));
    for (const auto& file : texts) write_file(file.first, file.second);
    write_file("config.json", config.dump(2) + "\n");
    for (const std::string& name : place_->created()) {
      const NamedDigest* const known = digest_named(shards, name);
      digests_.push_back(known != nullptr ? *known : digests_of(io_, files_, {&name, 1}).front());
    }
    digest_ = output_digest(digests_);
  }
  if (ranks_.size() > 1) digest_ = broadcast_text(ranks_, 0, digest_);
  if (place_ && !is_first()) place_->discard();  // rank 0 has all of it on its disk by now
  return digest_;
}

std::string ModelDirectory::publish(const std::vector<std::pair<std::string, std::string>>& extra_files,
                                    const ManifestText& manifest, bool move_latest) {
  if (!is_first()) return {};
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
