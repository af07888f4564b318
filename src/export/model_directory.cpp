#include "export/model_directory.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "base/log.h"

namespace llmq {
namespace {

std::uint64_t declared_bytes(const TensorDeclaration& tensor) {
  return TensorView(static_cast<const void*>(nullptr), tensor.dtype, tensor.shape).bytes();
}

// Not less than the tensor's line in a safetensors header: its name (escaped, at most six for one), dtype, up
// to eight extents, two offsets.
std::uint64_t header_bytes(const TensorDeclaration& tensor) { return 6 * tensor.name.size() + 320; }

constexpr std::uint64_t kShardSlack = 4096;  // length word, metadata, padding

// "out/x/" and "out/x" are the same place, whose sibling is "out/x.partial-7".
Path tidy(const Path& directory) {
  Path path = directory.lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

Path parent_of(const Path& path) { return path.has_parent_path() ? path.parent_path() : Path("."); }

Path sibling(const Path& path, const std::string& suffix) {
  return parent_of(path) / (path.filename().string() + suffix);
}

void remove_tree(Io& io, const Path& directory) {
  if (!io.exists(directory)) return;
  for (const std::string& name : io.list(directory)) io.remove(directory / name);
  io.remove(directory);
}

bool is_running(pid_t process) { return ::kill(process, 0) == 0 || errno != ESRCH; }

// The process of "<prefix><pid>", the pid as this program writes it; none for any other name.
std::optional<pid_t> process_of(const std::string& name, const std::string& prefix) {
  pid_t process = 0;
  if (!name.starts_with(prefix)) return std::nullopt;
  const char* const end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + prefix.size(), end, process);
  if (read.ec != std::errc() || read.ptr != end || process < 1) return std::nullopt;
  if (name != prefix + std::to_string(process)) return std::nullopt;
  return process;
}

// Removes the partial directories that killed runs to the same target left. An earlier output that was moved aside
// ("....previous") stays: it may be the only whole one.
void sweep_partials(Io& io, const Path& target) {
  const Path parent = parent_of(target);
  if (!io.is_directory(parent)) return;
  const std::string prefix = target.filename().string() + ".partial-";
  for (const std::string& name : io.list(parent)) {
    const std::optional<pid_t> process = process_of(name, prefix);
    const Path left = parent / name;
    std::error_code unknown;
    if (!process || is_running(*process) || std::filesystem::is_symlink(left, unknown) ||
        !io.is_directory(left))
      continue;
    const std::vector<std::string> inside = io.list(left);
    if (std::any_of(inside.begin(), inside.end(),
                    [&](const std::string& entry) { return io.is_directory(left / entry); }))
      continue;  // no directory is ever made there
    remove_tree(io, left);
    Log::get().warn(fmt::format("{}: removed; a run that was killed had left it", left.string()));
  }
}

bool is_llmq_output(Io& io, const Path& directory) {
  if (!io.exists(directory / "config.json") || !io.exists(directory / kReportFile)) return false;
  try {
    const Json report =
        Json::parse(read_text(io, directory / kReportFile), (directory / kReportFile).string());
    const Json* schema = report.find("schema");
    return schema != nullptr && schema->is_string() && schema->as_string() == kReportSchema;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo) throw;
    return false;  // some other program's report.json
  }
}

void check_room(Io& io, const Path& output, std::uint64_t needed) {
  Path place = parent_of(output);
  while (!io.is_directory(place) && place.has_parent_path() && place != place.parent_path())
    place = place.parent_path();
  if (!io.is_directory(place)) place = ".";
  const std::uint64_t available = io.free_bytes(place);
  if (available >= needed) return;
  fail(ErrorKind::kIo, {fmt::format("the output needs {} bytes and the disk has {} free", needed, available),
                        output.string(),
                        {},
                        "free some space, or name an output directory on another disk"});
}

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

void check_output_directory(Io& io, const OutputTarget& target) {
  const Path path = tidy(target.directory);
  if (!io.exists(path)) return;
  const auto refuse = [&](const std::string& message, const std::string& hint) {
    fail(ErrorKind::kUsage, {message, path.string(), {}, hint});
  };
  const std::string elsewhere = "name another output directory";
  if (!io.is_directory(path)) refuse("the output is a file, not a directory", elsewhere);
  const std::vector<std::string> names = io.list(path);
  if (names.empty()) return;
  if (!is_llmq_output(io, path))
    refuse("the output directory holds something else than an output of llmq", elsewhere);
  if (!target.overwrite)
    refuse("the output directory holds an earlier output of llmq",
           "pass --overwrite to replace it, or " + elsewhere);
  for (const std::string& name : names)
    if (io.is_directory(path / name))
      refuse(fmt::format("the output directory holds the directory '{}', which llmq did not write", name),
             elsewhere);
}

ModelDirectory::ModelDirectory(Io& io, const OutputTarget& target, const DirectoryContents& contents)
    : io_(io), target_(target) {
  target_.directory = tidy(target.directory);
  check_output_directory(io_, target_);
  const std::string mark = fmt::format(".partial-{}", ::getpid());
  partial_ = sibling(target_.directory, mark);
  previous_ = sibling(target_.directory, mark + ".previous");
  try {
    fill(contents);
  } catch (...) {
    take_back(false);
    throw;
  }
}

ModelDirectory::~ModelDirectory() {
  if (!whole_) take_back(false);
}

// Opens every file of the directory: shards reserve their room, companions are copied, so that what can fail
// fails before the work is done.
void ModelDirectory::fill(const DirectoryContents& contents) {
  const std::vector<ShardRange> ranges = split_shards(contents.tensors, target_.shard_bytes);
  std::uint64_t needed =
      ranges.size() * kShardSlack + (1u << 20);  // the texts of finish() stay far below a mebibyte
  for (const TensorDeclaration& tensor : contents.tensors) {
    tensor_bytes_ += declared_bytes(tensor);
    needed += declared_bytes(tensor) + 2 * header_bytes(tensor);  // once more in the index
  }
  for (const Path& copy : contents.copies) needed += io_.open(copy)->size();
  for (const auto& text : contents.texts) needed += text.second.size();
  sweep_partials(io_, target_.directory);
  check_room(io_, target_.directory, needed);

  remove_tree(io_, partial_);  // of a killed run whose process number came round again
  io_.make_directory(partial_);
  for (std::size_t s = 0; s < ranges.size(); ++s) {
    std::vector<TensorDeclaration> declarations;
    for (std::size_t i = ranges[s].first; i < ranges[s].first + ranges[s].count; ++i) {
      const TensorDeclaration& tensor = contents.tensors[i];
      if (!slots_.emplace(tensor.name, Slot{tensor, s}).second)
        fail(ErrorKind::kInternal,
             {"a tensor was declared twice", target_.directory.string(), tensor.name, {}});
      declarations.push_back(tensor);
    }
    written_.push_back(shard_name(s, ranges.size()));
    shards_.emplace_back(io_, partial_ / written_.back(), std::move(declarations),
                         std::map<std::string, std::string>{{"format", "pt"}});
    bytes_ += shards_.back().file_bytes();
  }
  for (const Path& copy : contents.copies) copy_file(copy);
  for (const auto& text : contents.texts) write_file(text.first, text.second);
}

void ModelDirectory::write_file(const std::string& name, std::string_view text) {
  written_.push_back(name);
  const std::unique_ptr<File> file = io_.create(partial_ / name);
  file->write_at(0, std::as_bytes(std::span(text)));
  file->sync();
}

void ModelDirectory::copy_file(const Path& from) {
  constexpr std::uint64_t kStep = 4u << 20;
  written_.push_back(from.filename().string());
  const std::unique_ptr<File> source = io_.open(from);
  const std::unique_ptr<File> copy = io_.create(partial_ / from.filename());
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

// By the names written, since a broken disk may not list them any more.
void ModelDirectory::remove_written(const Path& directory) {
  for (const std::string& name : written_) io_.remove(directory / name);
  io_.remove(directory);
}

void ModelDirectory::add(const std::string& name, DType dtype, const Shape& shape,
                         std::span<const std::byte> bytes) {
  const auto found = slots_.find(name);
  const auto refuse = [&](const std::string& message) {
    fail(ErrorKind::kInternal, {message, target_.directory.string(), name, {}});
  };
  if (found == slots_.end()) refuse("a tensor was written that was not declared");
  Slot& slot = found->second;
  if (slot.given) refuse("a tensor was written twice");
  if (slot.declaration.dtype != dtype || !(slot.declaration.shape == shape) ||
      bytes.size() != declared_bytes(slot.declaration))
    refuse(fmt::format("{} {} with {} bytes was written where {} {} was declared", dtype_row(dtype).name,
                       shape.text(), bytes.size(), dtype_row(slot.declaration.dtype).name,
                       slot.declaration.shape.text()));
  shards_[slot.shard].add(name, bytes);
  slot.given = true;
}

void ModelDirectory::write_index() {
  Json weights = Json::object();
  for (const auto& [name, slot] : slots_)
    weights.members().emplace_back(name, Json(shard_name(slot.shard, shards_.size())));
  Json index = Json::object();
  index["metadata"] = Json::object({{"total_size", Json(tensor_bytes_)}});
  index["weight_map"] = std::move(weights);
  write_file("model.safetensors.index.json", index.dump(2) + "\n");
}

void ModelDirectory::finish(const Json& config,
                            const std::vector<std::pair<std::string, std::string>>& extra_files,
                            const ManifestText& manifest) {
  for (const auto& [name, slot] : slots_)
    if (!slot.given)
      fail(ErrorKind::kInternal,
           {"a declared tensor was never written", target_.directory.string(), name, {}});
  try {
    for (SafetensorsWriter& shard : shards_) shard.finish();
    if (shards_.size() > 1) write_index();
    for (const auto& file : extra_files) write_file(file.first, file.second);
    write_file("config.json", config.dump(2) + "\n");
    if (manifest) write_file(kManifestFile, manifest(digests_of(io_, partial_, written_)));
    io_.sync_directory(partial_);
    publish();
  } catch (...) {
    if (!whole_) take_back(false);
    throw;
  }
}

// Renames the partial directory into place. Without the parent's sync the name might not outlive a power cut,
// so a failure there takes it back.
void ModelDirectory::publish() {
  check_output_directory(io_, target_);
  const bool replaces = io_.exists(target_.directory) && !io_.list(target_.directory).empty();
  if (replaces) {
    remove_tree(io_, previous_);
    io_.rename(target_.directory, previous_);
  }
  bool published = false;
  try {
    io_.rename(partial_, target_.directory);
    published = true;
    io_.sync_directory(parent_of(target_.directory));
  } catch (...) {
    take_back(published);
    throw;
  }
  whole_ = true;
  if (!replaces) return;
  try {
    remove_tree(io_, previous_);
  } catch (const Error& error) {
    Log::get().warn(fmt::format("{}: the replaced output could not be removed: {}", previous_.string(),
                                error.detail().message));
  }
}

// As if nothing had been written: the earlier output, if one was moved aside, gets its name back. A disk so
// broken that nothing can be renamed keeps a whole new output in the place of an earlier one, but never a new
// one alone, whose name might not last. Failures here are not reported: the first one is.
void ModelDirectory::take_back(bool published) noexcept {
  const auto attempt = [](auto&& step) {
    try {
      step();
      return true;
    } catch (...) {
      return false;
    }
  };
  whole_ = true;
  shards_.clear();
  bool replaced = true;
  attempt([&] { replaced = io_.exists(previous_); });
  if (published && !attempt([&] { io_.rename(target_.directory, partial_); })) {
    if (!replaced) attempt([&] { remove_written(target_.directory); });
    return;
  }
  if (replaced) attempt([&] { io_.rename(previous_, target_.directory); });
  attempt([&] { remove_written(partial_); });
}

}  // namespace llmq
