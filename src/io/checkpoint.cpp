// Opens what resolve_model() found: reads every header, crosses the index with the shards, and hands out
// views.
#include "io/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"
#include "io/foreign_file.h"
#include "io/gguf.h"
#include "io/gguf_model.h"
#include "io/hub.h"
#include "io/read_ahead.h"
#include "io/safetensors.h"
#include "io/shard_index.h"

namespace llmq {

struct Checkpoint::State {
  Path path;
  bool gguf = false;
  Json config;
  std::vector<Path> shards;
  std::vector<std::shared_ptr<const Mapping>> mappings;  // one per shard
  std::vector<StoredTensor> tensors;                     // by name
  std::vector<Path> companions;
  std::vector<std::vector<std::max_align_t>> copies;  // of tensors that lie at odd addresses
  std::uint64_t tensor_bytes = 0, header_bytes = 0;
  // Behind the mappings, so that leases go before them.
  mutable std::mutex mutex;
  mutable std::map<std::pair<int, std::uint64_t>, Lease> kept;  // by shard and offset
  mutable ReadAhead ahead;

  const Mapping& mapping(const StoredTensor& tensor) const {
    return *mappings[static_cast<std::size_t>(tensor.shard)];
  }
  // A copy needs no lease.
  bool is_mapped(const StoredTensor& tensor) const {
    return tensor.view.pointer == mapping(tensor).bytes().data() + tensor.offset;
  }
  struct Bytes {
    std::uint64_t offset = 0, size = 0;  // in the shard
  };
  static Bytes bytes_of(const StoredTensor& tensor, std::int64_t first, std::int64_t count) {
    const std::uint64_t row_bytes =
        tensor.view.bytes() / static_cast<std::uint64_t>(std::max<std::int64_t>(tensor.view.rows(), 1));
    return {tensor.offset + static_cast<std::uint64_t>(first) * row_bytes,
            static_cast<std::uint64_t>(count) * row_bytes};
  }
  Lease take_over(const StoredTensor& tensor, std::int64_t first, std::int64_t count) const {
    const Bytes bytes = bytes_of(tensor, first, count);
    return ahead.take_over(mapping(tensor), bytes.offset, bytes.size);
  }
  void keep_small(const StoredTensor& tensor) const {
    if (!is_kept(tensor) || !is_mapped(tensor)) return;
    const std::lock_guard lock(mutex);
    Lease& lease = kept[{tensor.shard, tensor.offset}];
    if (!lease) lease = mapping(tensor).lease(tensor.offset, tensor.view.bytes());
  }
};

namespace {

constexpr const char* kSingleShard = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr std::uint64_t kMaxConfigBytes = 4u << 20;
constexpr std::uint64_t kMaxIndexBytes = 64u << 20;

[[noreturn]] void bad(const Path& file, std::string where, std::string message, std::string hint = {}) {
  fail(ErrorKind::kBadInput,
       ErrorDetail{std::move(message), file.string(), std::move(where), std::move(hint)});
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

// A directory whose weights are in no container read here: says which ones were found.
[[noreturn]] void refuse_directory(const Path& directory, const std::vector<std::string>& names) {
  const auto first = [&](auto matches) -> std::string {
    const auto found = std::find_if(names.begin(), names.end(), matches);
    return found == names.end() ? std::string() : *found;
  };
  const std::string pickle = first([](const std::string& name) {
    return name.starts_with("pytorch_model") || name.ends_with(".pth") || name.ends_with(".pt");
  });
  if (!pickle.empty())
    fail(ErrorKind::kUnsupported,
         ErrorDetail{fmt::format("holds its weights as a PyTorch pickle ({})", pickle),
                     directory.string(),
                     {},
                     "pickles can run code and are not read; load the model in Transformers and "
                     "save_pretrained() it as safetensors"});
  const std::string gguf = first([](const std::string& name) { return name.ends_with(".gguf"); });
  if (!gguf.empty())
    bad(directory, {}, "is not in Hugging Face layout",
        fmt::format("pass the GGUF file: {}", (directory / gguf).string()));
  const std::string other = first([](const std::string& name) { return name.ends_with(".safetensors"); });
  bad(directory, {}, fmt::format("holds neither {} nor {}", kSingleShard, kIndex),
      other.empty() ? "is the download complete?"
                    : fmt::format("it has {} but no index that lists it; download the index too", other));
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
  const DTypeRow& row = dtype_row(tensor.view.dtype);
  const std::uintptr_t width =
      is_block_type(tensor.view.dtype) ? 2u : static_cast<std::uintptr_t>(row.block_bytes);
  return reinterpret_cast<std::uintptr_t>(tensor.view.pointer) % width == 0;
}

}  // namespace

// Fills a State; the steps of both containers.
class CheckpointReader {
 public:
  CheckpointReader(Io& io, Path path) : io_(io) { state_->path = std::move(path); }

  void read_directory() {
    const Path& directory = state_->path;
    const std::vector<std::string> names = io_.list(directory);
    const auto has = [&](const char* name) {
      return std::binary_search(names.begin(), names.end(), std::string(name));
    };
    if (!has(kSingleShard) && !has(kIndex)) refuse_directory(directory, names);
    if (!has("config.json"))
      bad(directory, {}, "holds no config.json", "a model directory has one beside its weights");
    state_->config = read_object(io_, directory / "config.json", kMaxConfigBytes);
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
        if (!has(shard.c_str()))
          bad(directory / shard, {}, "the shard is missing",
              fmt::format("{} lists it; download it again", kIndex));
        add_shard(directory / shard);
      }
      cross_check(index, index_path);
      warn_unreferenced(index, names);
    }
  }

  void read_gguf() {
    GgufFile file = open_gguf(io_, state_->path);
    GgufModel model = read_gguf_model(file.header, file.mapping->bytes());
    state_->gguf = true;
    const auto first =
        std::min_element(file.header.tensors.begin(), file.header.tensors.end(),
                         [](const GgufTensor& a, const GgufTensor& b) { return a.offset < b.offset; });
    if (first != file.header.tensors.end()) {
      file.mapping->lease(0, first->offset);
      state_->header_bytes = round_up(first->offset, kIoBlock);
    }
    state_->config = std::move(model.config);
    state_->shards.push_back(state_->path);
    state_->mappings.push_back(file.mapping);
    for (const GgufModelTensor& named : model.tensors) {
      const GgufTensor& tensor = file.header.tensors[named.index];
      add_tensor(named.name, tensor.dtype, tensor.shape, tensor.offset, named.permuted_heads);
    }
  }

  void read_shards(const std::vector<Path>& shards, Json config) {
    state_->config = std::move(config);
    for (const Path& shard : shards) add_shard(shard);
  }

  void copy_tensors(const std::vector<Checkpoint::OwnedTensor>& tensors, Json config) {
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

  std::shared_ptr<const Checkpoint::State> finish() {
    auto& tensors = state_->tensors;
    std::sort(tensors.begin(), tensors.end(),
              [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
    for (std::size_t i = 1; i < tensors.size(); ++i)
      if (tensors[i].name == tensors[i - 1].name)
        bad(shard(tensors[i]), tensors[i].name,
            fmt::format("the tensor is also in {}", shard(tensors[i - 1]).filename().string()));
    copy_odd_ones();
    for (const StoredTensor& tensor : tensors) state_->tensor_bytes += tensor.view.bytes();
    return state_;
  }

 private:
  const Path& shard(const StoredTensor& tensor) const {
    return state_->shards[static_cast<std::size_t>(tensor.shard)];
  }

  void add_shard(const Path& path) {
    std::shared_ptr<const Mapping> mapping = io_.open(path)->map();
    const Lease lease = hold_safetensors_header(*mapping);
    const SafetensorsHeader header = parse_safetensors(mapping->bytes(), path.string());
    state_->header_bytes += round_up(header.entries.empty() ? 1 : header.entries.front().offset, kIoBlock);
    state_->shards.push_back(path);
    state_->mappings.push_back(std::move(mapping));
    for (const SafetensorsEntry& entry : header.entries)
      add_tensor(entry.name, entry.dtype, entry.shape, entry.offset, 0);
  }

  // Of the last shard added.
  void add_tensor(const std::string& name, DType dtype, const Shape& shape, std::uint64_t offset,
                  int permuted_heads) {
    StoredTensor tensor;
    tensor.name = name;
    const std::byte* begin = state_->mappings.back()->bytes().data() + offset;
    tensor.view = TensorView(static_cast<const void*>(begin), dtype, shape);
    tensor.shard = static_cast<int>(state_->shards.size()) - 1;
    tensor.offset = offset;
    tensor.permuted_heads = permuted_heads;
    state_->tensors.push_back(std::move(tensor));
  }

  // Every tensor of the index lies in the shard it names.
  void cross_check(const ShardIndex& index, const Path& index_path) const {
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

  void warn_unreferenced(const ShardIndex& index, const std::vector<std::string>& names) const {
    for (const std::string& name : names)
      if (name.ends_with(".safetensors") &&
          !std::binary_search(index.shards.begin(), index.shards.end(), name))
        Log::get().warn(fmt::format("{}: the index does not list this file; it is not read",
                                    (state_->path / name).string()));
  }

  void* copy_of(const void* bytes, std::size_t size) {
    auto& copy = state_->copies.emplace_back(size / sizeof(std::max_align_t) + 1);
    if (size != 0) std::memcpy(copy.data(), bytes, size);
    return copy.data();
  }

  void copy_odd_ones() {
    std::uint64_t bytes = 0;
    for (StoredTensor& tensor : state_->tensors) {
      if (lies_in_place(tensor)) continue;
      const std::uint64_t size = tensor.view.bytes();
      bytes += size;
      const Lease lease = state_->mapping(tensor).lease(tensor.offset, size);
      tensor.view.pointer = copy_of(tensor.view.pointer, static_cast<std::size_t>(size));
    }
    if (bytes > 0)
      Log::get().warn(fmt::format(
          "{}: {} bytes of tensors are not aligned to their element size and are copied into memory; "
          "saving the model again would align them",
          state_->path.string(), bytes));
  }

  Io& io_;
  std::shared_ptr<Checkpoint::State> state_ = std::make_shared<Checkpoint::State>();
};

Checkpoint Checkpoint::open(Io& io, const std::string& model) {
  const Path path = resolve_model(io, model);
  CheckpointReader reader(io, path);
  if (io.is_directory(path))
    reader.read_directory();
  else
    reader.read_gguf();
  Checkpoint checkpoint;
  checkpoint.state_ = reader.finish();
  return checkpoint;
}

Checkpoint Checkpoint::open_shards(Io& io, const Path& directory, const std::vector<Path>& shards,
                                   Json config) {
  CheckpointReader reader(io, directory);
  reader.read_shards(shards, std::move(config));
  Checkpoint checkpoint;
  checkpoint.state_ = reader.finish();
  return checkpoint;
}

Checkpoint Checkpoint::of_tensors(const std::vector<OwnedTensor>& tensors, Json config) {
  CheckpointReader reader(system_io(), {});
  reader.copy_tensors(tensors, std::move(config));
  Checkpoint checkpoint;
  checkpoint.state_ = reader.finish();
  return checkpoint;
}

const StoredTensor* Checkpoint::find(std::string_view name) const {
  const auto& tensors = state_->tensors;
  const auto found =
      std::lower_bound(tensors.begin(), tensors.end(), name,
                       [](const StoredTensor& tensor, std::string_view key) { return tensor.name < key; });
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

const StoredTensor& Checkpoint::at(std::string_view name) const {
  if (const StoredTensor* tensor = find(name)) return *tensor;
  bad(state_->path, std::string(name), "the checkpoint holds no such tensor", "is the download complete?");
}

const std::vector<StoredTensor>& Checkpoint::tensors() const { return state_->tensors; }
const Json& Checkpoint::config() const { return state_->config; }
const Path& Checkpoint::path() const { return state_->path; }
bool Checkpoint::is_gguf() const { return state_->gguf; }
std::uint64_t Checkpoint::tensor_bytes() const { return state_->tensor_bytes; }
std::uint64_t Checkpoint::header_bytes() const { return state_->header_bytes; }
const std::vector<Path>& Checkpoint::shards() const { return state_->shards; }
const std::vector<Path>& Checkpoint::companion_files() const { return state_->companions; }

std::vector<float> Checkpoint::read_float32(const StoredTensor& tensor) const {
  std::vector<float> values(static_cast<std::size_t>(tensor.view.rows() * tensor.view.cols()));
  ThreadPool here(1);
  read_float32(tensor, values, here);
  return values;
}

void Checkpoint::read_float32(const StoredTensor& tensor, std::span<float> into, ThreadPool& pool) const {
  const TensorView& view = tensor.view;
  const std::int64_t cols = view.cols();
  if (into.empty()) return;
  if (tensor.permuted_heads == 0) {
    // By bands: otherwise the tensor would be there twice.
    each_band(tensor, [&](std::int64_t first, const TensorView& band) {
      to_float32(
          band,
          into.subspan(static_cast<std::size_t>(first * cols), static_cast<std::size_t>(band.rows() * cols)),
          pool);
    });
    return;
  }
  const Lease lease = hold(tensor);
  // A bias is a column: its rows are single values, and such a vector is never a block type.
  const std::int64_t units = view.shape[0], width = view.shape.elements() / units;
  const std::uint64_t unit_bytes = view.bytes() / static_cast<std::uint64_t>(units);
  pool.parallel_for(static_cast<std::size_t>(units), [&](std::size_t row, int) {
    const auto source =
        static_cast<std::uint64_t>(source_row(static_cast<std::int64_t>(row), units, tensor.permuted_heads));
    const TensorView one(static_cast<const void*>(view.as<const std::byte>() + source * unit_bytes),
                         view.dtype, Shape{width});
    to_float32(one, into.subspan(row * static_cast<std::size_t>(width), static_cast<std::size_t>(width)));
  });
}

namespace {

std::int64_t band_rows(const TensorView& view) {
  return std::max<std::int64_t>(1, Checkpoint::kBandElements / std::max<std::int64_t>(view.cols(), 1));
}

// Calls see(first row, rows) for each band of a tensor, in order.
template <typename See>
void for_bands(const TensorView& view, const See& see) {
  if (view.shape.elements() == 0) return;
  const std::int64_t rows = view.rows(), band = band_rows(view);
  for (std::int64_t first = 0; first < rows; first += band) see(first, std::min(band, rows - first));
}

}  // namespace

void Checkpoint::each_band(const StoredTensor& tensor, const EachBand& see) const {
  const TensorView& view = tensor.view;
  for_bands(view, [&](std::int64_t first, std::int64_t count) {
    const Lease lease = hold_band(tensor, first, count);
    const std::uint64_t begin = State::bytes_of(tensor, first, count).offset - tensor.offset;
    see(first, TensorView(static_cast<const void*>(view.as<const std::byte>() + begin), view.dtype,
                          {count, view.cols()}));
  });
}

Lease Checkpoint::hold(const StoredTensor& tensor) const {
  state_->keep_small(tensor);
  std::vector<Lease> ahead;
  for_bands(tensor.view, [&](std::int64_t first, std::int64_t count) {
    ahead.push_back(state_->take_over(tensor, first, count));
  });
  return hold_rows(tensor, 0, tensor.view.rows());
}

Lease Checkpoint::hold_rows(const StoredTensor& tensor, std::int64_t first, std::int64_t count) const {
  if (!state_->is_mapped(tensor)) return {};
  const State::Bytes bytes = State::bytes_of(tensor, first, count);
  return state_->mapping(tensor).lease(bytes.offset, bytes.size);
}

Lease Checkpoint::hold_band(const StoredTensor& tensor, std::int64_t first, std::int64_t count) const {
  state_->keep_small(tensor);
  const Lease ahead = state_->take_over(tensor, first, count);  // until the rows are held
  return hold_rows(tensor, first, count);
}

bool Checkpoint::is_kept(const StoredTensor& tensor) { return tensor.view.bytes() <= kKeptBytes; }

std::uint64_t Checkpoint::bytes_to_read(const StoredTensor& tensor) {
  std::uint64_t bytes = 0;
  for_bands(tensor.view, [&](std::int64_t first, std::int64_t count) {
    const State::Bytes band = State::bytes_of(tensor, first, count);
    bytes += round_up(band.offset + band.size, kIoBlock) - band.offset / kIoBlock * kIoBlock;
  });
  return bytes;
}

bool Checkpoint::holds_in_memory() const {
  return !state_->mappings.empty() && state_->mappings.front()->in_memory();
}

void Checkpoint::read_ahead(const StoredTensor& tensor) const {
  if (!state_->is_mapped(tensor)) return;
  const std::uint64_t window = holds_in_memory() ? kReadAheadBytes : kReadAheadCached;
  for_bands(tensor.view, [&](std::int64_t first, std::int64_t count) {
    const State::Bytes band = State::bytes_of(tensor, first, count);
    state_->ahead.add(state_->mapping(tensor), band.offset, band.size, window);
  });
}

void Checkpoint::release(const StoredTensor& tensor) const {
  state_->mapping(tensor).release(tensor.offset, tensor.view.bytes());
}

}  // namespace llmq
