#include "io/checkpoint_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "io/foreign_file.h"
#include "io/gguf.h"
#include "io/hub.h"
#include "io/safetensors.h"
#include "io/shard_index.h"

namespace llmq {
namespace {

constexpr const char* kSingleShard = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr std::uint64_t kMaxConfigBytes = 4u << 20;
constexpr std::uint64_t kMaxIndexBytes = 64u << 20;

[[noreturn]] void bad(const Path& file, std::string where, std::string message, std::string hint = {}) {
  fail(ErrorKind::kBadInput, {std::move(message), file.string(), std::move(where), std::move(hint)});
}

Json read_object(Io& io, const Path& path, std::uint64_t limit) {
  const std::string text = read_text(io, path, limit);
  if (const auto foreign = recognize_foreign_file(std::as_bytes(std::span(text)), "JSON"))
    bad(path, {}, fmt::format("this is {}", foreign->what), foreign->hint);
  JsonLimits limits;
  limits.max_bytes = static_cast<std::size_t>(limit);
  Json json = Json::parse(text, path.string(), limits);
  if (!json.is_object()) bad(path, {}, fmt::format("holds {} where an object was expected", json.kind()));
  return json;
}

// Behind tensors that have no file.
class NoFile final : public Mapping {
 public:
  std::span<const std::byte> bytes() const override { return {}; }
  void release(std::uint64_t, std::uint64_t) const override {}
  void take(std::uint64_t, std::uint64_t) const override {}
  void give_back(std::uint64_t, std::uint64_t) const noexcept override {}
};

// A plain type must lie at a multiple of its size to be read in place; old writers did not pad the header.
bool lies_in_place(const StoredTensor& tensor) {
  const auto width = static_cast<std::uintptr_t>(alignment(tensor.view.dtype));
  return reinterpret_cast<std::uintptr_t>(tensor.view.pointer) % width == 0;
}

}  // namespace

void CheckpointReader::read_directory() {
  const Path& directory = state_->path;
  const std::vector<std::string> names = io_.list(directory);
  const auto has = [&](const std::string& name) {
    return std::binary_search(names.begin(), names.end(), name);
  };
  if (!has(kSingleShard) && !has(kIndex)) refuse_foreign_directory(directory, names, kSingleShard, kIndex);
  if (!has("config.json"))
    bad(directory, {}, "holds no config.json", "a model directory has one beside its weights");
  const auto read_config = [&](const char* name) {
    return read_object(io_, state_->configs.emplace_back(directory / name), kMaxConfigBytes);
  };
  state_->config = read_config("config.json");
  if (has(kModeloptFile)) take_modelopt_config(read_config(kModeloptFile));
  for (const std::string& name : names)
    if (is_companion_name(name) && !io_.is_directory(directory / name))
      state_->companions.push_back(directory / name);
  if (has(kSingleShard)) {
    add_shard(directory / kSingleShard);
  } else {
    const Path index_path = directory / kIndex;
    const ShardIndex index =
        read_shard_index(read_object(io_, index_path, kMaxIndexBytes), index_path.string());
    for (const std::string& shard : index.shards) {
      if (!has(shard))
        bad(directory / shard, {}, "the shard is missing",
            fmt::format("{} lists it; download it again", kIndex));
      add_shard(directory / shard);
    }
    cross_check(index, index_path);
    warn_unreferenced(index, names);
  }
}

void CheckpointReader::read_gguf(ReadGguf read) {
  if (read == nullptr)
    fail(ErrorKind::kUnsupported, {"is a GGUF file, which is not read as a model here",
                                   state_->path.string(),
                                   {},
                                   "pass a model directory in Hugging Face layout"});
  GgufFile file = open_gguf(io_, state_->path);
  GgufReading model = read(file.header);
  state_->gguf = true;
  std::vector<std::uint64_t> first(file.paths.size(), UINT64_MAX);  // byte of a tensor
  for (const GgufTensor& tensor : file.header.tensors) {
    std::uint64_t& offset = first[static_cast<std::size_t>(tensor.part)];
    offset = std::min(offset, tensor.offset);
  }
  for (std::size_t part = 0; part < first.size(); ++part) {
    if (first[part] == UINT64_MAX) continue;
    file.mappings[part]->lease(0, first[part]);
    state_->header_bytes += round_up(first[part], kIoBlock);
  }
  state_->config = std::move(model.config);
  state_->shards = std::move(file.paths);
  state_->mappings = std::move(file.mappings);
  for (const NamedGgufTensor& named : model.tensors) {
    const GgufTensor& tensor = file.header.tensors[named.index];
    add_tensor(named.name, tensor.dtype, named.shape.value_or(tensor.shape), tensor.offset + named.offset,
               named.permuted_heads, tensor.part);
    state_->tensors.back().shift = named.shift;
    if (!named.pieces.empty()) add_pieces(named, file.header.tensors);
  }
  join_gguf_scales(model.tensors, file.header.tensors);
}

void CheckpointReader::read_shards(const std::vector<Path>& shards, Json config) {
  state_->config = std::move(config);
  for (const Path& shard : shards) add_shard(shard);
}

void CheckpointReader::copy_tensors(const std::vector<Checkpoint::OwnedTensor>& tensors, Json config) {
  state_->config = std::move(config);
  state_->shards.emplace_back();
  state_->mappings.push_back(std::make_shared<NoFile>());
  for (const Checkpoint::OwnedTensor& owned : tensors) {
    StoredTensor& tensor = state_->tensors.emplace_back();
    tensor.name = owned.name;
    const void* const bytes = copy_of(owned.bytes.data(), owned.bytes.size());
    tensor.view = TensorView(bytes, owned.dtype, owned.shape);
    if (tensor.view.bytes() != owned.bytes.size())
      fail(ErrorKind::kInternal, "tensor {} of shape {} is given {} bytes", owned.name, owned.shape.text(),
           owned.bytes.size());
  }
}

std::shared_ptr<const Checkpoint::State> CheckpointReader::finish() {
  auto& tensors = state_->tensors;
  std::sort(tensors.begin(), tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
  for (std::size_t i = 1; i < tensors.size(); ++i)
    if (tensors[i].name == tensors[i - 1].name) refuse_twice(tensors[i], tensors[i - 1]);
  copy_odd_ones();
  for (const StoredTensor& tensor : tensors) state_->tensor_bytes += tensor.bytes_on_disk();
  return state_;
}

// By itself in two files, or in two layouts of experts: alone and in a stack, or in two stacks.
void CheckpointReader::refuse_twice(const StoredTensor& tensor, const StoredTensor& other) const {
  std::string stacks;
  int holding = 0;
  for (const auto& [stack, names] : parted_) {
    const std::string_view name = tensor.name;
    if (!name.starts_with(names.before)) continue;
    const std::size_t end = name.find_first_not_of("0123456789", names.before.size());
    const std::string_view behind = name.substr(std::min(end, name.size()));
    if (behind != names.after &&
        std::find(names.further.begin(), names.further.end(), behind) == names.further.end())
      continue;
    stacks += (holding++ == 0 ? "" : " and of ") + stack;
  }
  if (holding == 0)
    bad(shard(tensor), tensor.name,
        fmt::format("the tensor is also in {}", shard(other).filename().string()));
  bad(shard(tensor), tensor.name,
      fmt::format("is stored {}as a part of {}", holding == 1 ? "by itself and " : "", stacks),
      "keep one of the two layouts");
}

const Path& CheckpointReader::shard(const StoredTensor& tensor) const {
  const auto index = static_cast<std::size_t>(tensor.shard);
  return index < state_->shards.size() ? state_->shards[index] : state_->path;  // made of others
}

void CheckpointReader::add_shard(const Path& path) {
  std::shared_ptr<const Mapping> mapping = io_.open(path)->map();
  const Lease lease = hold_safetensors_header(*mapping);
  const SafetensorsHeader header = parse_safetensors(mapping->bytes(), path.string());
  state_->header_bytes += round_up(header.entries.empty() ? 1 : header.entries.front().offset, kIoBlock);
  state_->shards.push_back(path);
  state_->mappings.push_back(std::move(mapping));
  for (const SafetensorsEntry& entry : header.entries)
    add_tensor(entry.name, entry.dtype, entry.shape, entry.offset, 0,
               static_cast<int>(state_->shards.size()) - 1);
}

void CheckpointReader::add_tensor(const std::string& name, DType dtype, const Shape& shape,
                                  std::uint64_t offset, int permuted_heads, int shard) {
  StoredTensor tensor;
  tensor.name = name;
  const std::byte* begin = state_->mappings[static_cast<std::size_t>(shard)]->bytes().data() + offset;
  tensor.view = TensorView(static_cast<const void*>(begin), dtype, shape);
  tensor.shard = shard;
  tensor.offset = offset;
  tensor.permuted_heads = permuted_heads;
  state_->tensors.push_back(std::move(tensor));
}

void CheckpointReader::cross_check(const ShardIndex& index, const Path& index_path) const {
  std::map<std::string_view, const StoredTensor*> found;  // a tensor in two shards is refused by finish()
  for (const StoredTensor& tensor : state_->tensors) {
    const auto listed = index.shard_of.find(tensor.name);
    if (listed == index.shard_of.end())
      Log::get().warn(
          fmt::format("{}: tensor {} is not listed in {}", shard(tensor).string(), tensor.name, kIndex));
    else if (listed->second == shard(tensor).filename().string())
      found.emplace(tensor.name, &tensor);
    else
      bad(index_path, tensor.name,
          fmt::format("the index places the tensor in {} and {} holds it", listed->second,
                      shard(tensor).filename().string()));
  }
  for (const auto& [name, file] : index.shard_of)
    if (!found.contains(name))
      bad(index_path, name, fmt::format("the index places the tensor in {}, which does not hold it", file));
  std::uint64_t total = 0;
  for (const StoredTensor& tensor : state_->tensors) total += tensor.view.bytes();
  if (index.total_size && *index.total_size != total)
    Log::get().warn(fmt::format("{}: total_size is {} and the tensors take {} bytes", index_path.string(),
                                *index.total_size, total));
}

void CheckpointReader::warn_unreferenced(const ShardIndex& index,
                                         const std::vector<std::string>& names) const {
  for (const std::string& name : names)
    if (name.ends_with(".safetensors") && !std::binary_search(index.shards.begin(), index.shards.end(), name))
      Log::get().warn(fmt::format("{}: the index does not list this file; it is not read",
                                  (state_->path / name).string()));
}

void* CheckpointReader::copy_of(const void* bytes, std::size_t size) {
  auto& copy = state_->copies.emplace_back(size / sizeof(std::max_align_t) + 1);
  if (size != 0) std::memcpy(copy.data(), bytes, size);
  return copy.data();
}

void CheckpointReader::copy_odd_ones() {
  std::uint64_t bytes = 0;
  const auto place = [&](StoredTensor& tensor) {
    if (lies_in_place(tensor)) return;
    const std::uint64_t size = tensor.stored_bytes();
    bytes += size;
    const Lease lease = state_->mapping(tensor).lease(tensor.offset, size);
    tensor.view.pointer = copy_of(tensor.view.pointer, static_cast<std::size_t>(size));
  };
  std::for_each(state_->tensors.begin(), state_->tensors.end(), place);
  for (StoredStack& stack : state_->stacks) std::for_each(stack.tensors.begin(), stack.tensors.end(), place);
  if (bytes > 0)
    Log::get().warn(fmt::format(
        "{}: {} bytes of tensors are not aligned to their element size and are copied into memory; "
        "saving the model again would align them",
        state_->path.string(), bytes));
}

}  // namespace llmq
