// Hands out views of an open checkpoint, and reads its tensors.
#include "io/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "base/threads.h"
#include "io/checkpoint_reader.h"
#include "io/checkpoint_state.h"
#include "io/codes/gguf_scales.h"
#include "io/gguf_rows.h"
#include "io/hub.h"
#include "tensor/mxfp4.h"

namespace llmq {

Checkpoint Checkpoint::open(Io& io, const std::string& model, ReadGguf read_gguf, FindSlabs find_slabs) {
  const Path path = resolve_model(io, model);
  CheckpointReader reader(io, path);
  if (io.is_directory(path)) {
    reader.read_directory();
    reader.join_float8_blocks();
    reader.join_bitsandbytes();
    reader.join_mlx();
    reader.rename_modelopt_scales();
    if (find_slabs != nullptr) reader.part_stacks(find_slabs);
  } else {
    reader.read_gguf(read_gguf);
  }
  Checkpoint checkpoint;
  checkpoint.state_ = reader.finish();
  return checkpoint;
}

Checkpoint Checkpoint::open_shards(Io& io, const Path& directory, const std::vector<Path>& shards,
                                   Json config) {
  CheckpointReader reader(io, directory);
  reader.read_shards(shards, std::move(config));
  reader.join_mlx();
  reader.rename_modelopt_scales();
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

Checkpoint Checkpoint::showing(std::vector<StoredTensor> tensors, Json config) const {
  auto state = std::make_shared<State>();
  state->path = state_->path;
  state->gguf = state_->gguf;
  state->config = std::move(config);
  state->quantization_file = state_->quantization_file;
  state->shards = state_->shards;
  state->mappings = state_->mappings;
  state->tensors = std::move(tensors);
  std::sort(state->tensors.begin(), state->tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
  state->stacks = state_->stacks;
  state->companions = state_->companions;
  state->configs = state_->configs;
  state->shown = state_;
  state->tensor_bytes = state_->tensor_bytes;
  state->header_bytes = state_->header_bytes;
  Checkpoint checkpoint;
  checkpoint.state_ = std::move(state);
  return checkpoint;
}

const StoredTensor* Checkpoint::find(std::string_view name) const {
  const auto& tensors = state_->tensors;
  const auto found =
      std::lower_bound(tensors.begin(), tensors.end(), name,
                       [](const StoredTensor& tensor, std::string_view key) { return tensor.name < key; });
  if (found != tensors.end() && found->name == name) return &*found;
  for (const StoredStack& stack : state_->stacks)
    for (const StoredTensor& tensor : stack.tensors)
      if (tensor.name == name) return &tensor;
  return nullptr;
}

const StoredTensor& Checkpoint::at(std::string_view name) const {
  if (const StoredTensor* tensor = find(name)) return *tensor;
  fail(ErrorKind::kBadInput, {"the checkpoint holds no such tensor", state_->path.string(), std::string(name),
                              "is the download complete?"});
}

const std::vector<StoredTensor>& Checkpoint::tensors() const { return state_->tensors; }
const std::vector<StoredStack>& Checkpoint::stacks() const { return state_->stacks; }
const Json& Checkpoint::config() const { return state_->config; }
const Path& Checkpoint::path() const { return state_->path; }
Path Checkpoint::quantization_file() const { return is_gguf() ? path() : path() / state_->quantization_file; }
bool Checkpoint::is_gguf() const { return state_->gguf; }
std::uint64_t Checkpoint::tensor_bytes() const { return state_->tensor_bytes; }
std::uint64_t Checkpoint::header_bytes() const { return state_->header_bytes; }
const std::vector<Path>& Checkpoint::shards() const { return state_->shards; }
const std::vector<Path>& Checkpoint::companion_files() const { return state_->companions; }
const std::vector<Path>& Checkpoint::config_files() const { return state_->configs; }

namespace {

// The view's bytes are its transpose's, row after row, perhaps beside or between those of others: tiles of
// them are widened and turned. A vector is a column.
void read_transposed(const StoredTensor& tensor, std::span<float> into, ThreadPool& pool) {
  constexpr std::int64_t kTile = 64;
  const TensorView& view = tensor.view;
  const std::int64_t rows = view.shape[0], columns = view.shape.elements() / rows,
                     width = rows * tensor.side_by_side,
                     own = tensor.alternating ? tensor.place : tensor.place * rows,
                     step = tensor.alternating ? tensor.side_by_side : 1;
  const TensorView stored(view.pointer, view.dtype, Shape{columns, width});
  pool.parallel_for(static_cast<std::size_t>((columns + kTile - 1) / kTile), [&](std::size_t tile, int) {
    const std::int64_t first = static_cast<std::int64_t>(tile) * kTile,
                       count = std::min(kTile, columns - first);
    std::vector<float> values(static_cast<std::size_t>(count * width));
    to_float32(stored.row_slice(first, count), values);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < count; ++c)
        into[static_cast<std::size_t>(r * columns + first + c)] =
            values[static_cast<std::size_t>(c * width + own + r * step)];
  });
}

// Codes of whole blocks, 16 bytes each, and a byte of exponents for each.
void widen_mxfp4(const std::uint8_t* codes, const std::uint8_t* exponents, std::span<float> into) {
  for (std::size_t block = 0; block < into.size() / 32; ++block) {
    const float power = mxfp4_scale(exponents[block]);
    float values[16];  // of this block's codes; powers of two round nothing
    for (std::size_t code = 0; code < 16; ++code) values[code] = kE2M1[code] * power;
    for (std::size_t i = 0; i < 16; ++i) {
      const std::uint8_t both = codes[block * 16 + i];
      into[block * 32 + 2 * i] = values[both & 15];
      into[block * 32 + 2 * i + 1] = values[both >> 4];
    }
  }
}

}  // namespace

// Of these rows, all of which are numbers.
Lease Checkpoint::hold_exponents(const StoredTensor& tensor, std::int64_t first, std::int64_t count) const {
  const std::int64_t blocks = tensor.view.cols() / kMxfp4Block, each = tensor.side_by_side;
  const StoredTensor::Exponents& exponents = *tensor.exponents;
  Lease lease =
      state_->mapping(exponents).lease(exponents.offset + static_cast<std::uint64_t>(first * each * blocks),
                                       static_cast<std::uint64_t>(count * each * blocks));
  for (std::int64_t row = first; row < first + count; ++row) {
    const std::uint8_t* const own = exponents.pointer + (row * each + tensor.place) * blocks;
    if (const void* const found = std::memchr(own, kMxfp4NoNumber, static_cast<std::size_t>(blocks)))
      fail(ErrorKind::kBadInput,
           {fmt::format("has the exponent byte 255 at row {}, block {}, which stands for no number (E8M0)",
                        row, static_cast<const std::uint8_t*>(found) - own),
            path().string(), tensor.name, "was the download cut or changed?"});
  }
  return lease;
}

void Checkpoint::read_mxfp4_rows(const StoredTensor& tensor, std::span<float> into, ThreadPool& pool) const {
  const std::int64_t rows = tensor.view.rows(), columns = tensor.view.cols();
  const Lease codes = hold(tensor), exponents = hold_exponents(tensor, 0, rows);
  pool.parallel_for(static_cast<std::size_t>(rows), [&](std::size_t at, int) {
    const std::int64_t stored = static_cast<std::int64_t>(at) * tensor.side_by_side + tensor.place;
    widen_mxfp4(tensor.view.as<const std::uint8_t>() + stored * (columns / 2),
                tensor.exponents->pointer + stored * (columns / kMxfp4Block),
                into.subspan(at * static_cast<std::size_t>(columns), static_cast<std::size_t>(columns)));
  });
}

std::vector<std::uint8_t> Checkpoint::read_mxfp4(const StoredTensor& tensor, std::int64_t first,
                                                 std::int64_t count) const {
  const Lease codes = hold_band(tensor, first, count), exponents = hold_exponents(tensor, first, count);
  const std::int64_t blocks = tensor.view.cols() / kMxfp4Block;
  std::vector<std::uint8_t> rows;
  rows.reserve(static_cast<std::size_t>(count * blocks) * 17);
  for (std::int64_t row = first; row < first + count; ++row)
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t at = (row * tensor.side_by_side + tensor.place) * blocks + block;
      const std::uint8_t* const pairs = tensor.view.as<const std::uint8_t>() + at * (kMxfp4Block / 2);
      rows.push_back(tensor.exponents->pointer[at]);
      rows.insert(rows.end(), pairs, pairs + kMxfp4Block / 2);
    }
  return rows;
}

std::vector<float> Checkpoint::read_float32(const StoredTensor& tensor) const {
  if (!has_values(tensor.view.dtype) && !tensor.exponents && !tensor.bits_and_bytes)
    fail(ErrorKind::kUnsupported,
         {fmt::format("is stored as {}, whose values are not read here", dtype_row(tensor.view.dtype).name),
          path().string(), tensor.name, "convert the tensor to F32, F16 or BF16"});
  std::vector<float> values(static_cast<std::size_t>(tensor.view.rows() * tensor.view.cols()));
  ThreadPool here(1);
  read_float32(tensor, values, here);
  return values;
}

void Checkpoint::read_float32(const StoredTensor& tensor, std::span<float> into, ThreadPool& pool) const {
  const TensorView& view = tensor.view;
  const std::int64_t cols = view.cols();
  if (into.empty()) return;
  if (tensor.in_order()) {
    // By bands: otherwise the tensor would be there twice.
    each_band(tensor, [&](std::int64_t first, const TensorView& band) {
      to_float32(
          band,
          into.subspan(static_cast<std::size_t>(first * cols), static_cast<std::size_t>(band.rows() * cols)),
          pool);
    });
    return;
  }
  if (tensor.unpacking) return tensor.unpacking->read(into, pool);
  if (tensor.exponents) return read_mxfp4_rows(tensor, into, pool);
  if (tensor.pieces) return read_gguf_parts(tensor, into, pool);
  if (tensor.shift != 0) {
    const Lease lease = hold(tensor);
    to_float32(view, into);
    for (float& value : into) value -= tensor.shift;
    return;
  }
  if (tensor.block_scales && state_->gguf) {
    const Lease lease = hold(tensor);
    return read_scaled_rows(tensor, into, pool);
  }
  if (tensor.block_scales) return read_float8_rows(tensor, into, pool);
  if (tensor.bits_and_bytes) return read_bits_and_bytes(tensor, into, pool);
  const Lease lease = hold(tensor);
  if (tensor.transposed || tensor.side_by_side != 1) return read_transposed(tensor, into, pool);
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
  if (tensor.unpacking) return {};
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

bool Checkpoint::is_kept(const StoredTensor& tensor) {
  return !tensor.unpacking && tensor.stored_bytes() <= kKeptBytes;
}

std::uint64_t Checkpoint::bytes_kept(const StoredTensor& tensor) {
  if (tensor.unpacking) return tensor.unpacking->bytes_kept();
  return is_kept(tensor) ? bytes_to_read(tensor) : 0;
}

std::uint64_t Checkpoint::bytes_to_read(const StoredTensor& tensor) {
  if (tensor.unpacking) return tensor.unpacking->bytes_to_read();
  std::uint64_t bytes = 0;
  if (tensor.pieces) {
    for (const StoredTensor::Piece& piece : *tensor.pieces)
      bytes += round_up(piece.offset + piece.view.bytes(), kIoBlock) - piece.offset / kIoBlock * kIoBlock;
    return bytes;
  }
  for_bands(tensor.view, [&](std::int64_t first, std::int64_t count) {
    const State::Bytes band = State::bytes_of(tensor, first, count);
    bytes += round_up(band.offset + band.size, kIoBlock) - band.offset / kIoBlock * kIoBlock;
  });
  return bytes;
}

bool Checkpoint::holds_in_memory() const {
  return std::any_of(state_->mappings.begin(), state_->mappings.end(),
                     [](const auto& mapping) { return mapping->in_memory(); });
}

void Checkpoint::read_ahead(const StoredTensor& tensor) const {
  if (tensor.unpacking) return tensor.unpacking->read_ahead();
  if (!state_->is_mapped(tensor)) return;
  const std::uint64_t window = holds_in_memory() ? kReadAheadBytes : kReadAheadCached;
  for_bands(tensor.view, [&](std::int64_t first, std::int64_t count) {
    const State::Bytes band = State::bytes_of(tensor, first, count);
    state_->ahead.add(state_->mapping(tensor), band.offset, band.size, window);
  });
}

void Checkpoint::release(const StoredTensor& tensor) const {
  if (tensor.unpacking) return tensor.unpacking->release();
  if (tensor.pieces) {
    for (const StoredTensor::Piece& piece : *tensor.pieces)
      state_->mapping(piece).release(piece.offset, piece.view.bytes());
    return;
  }
  state_->mapping(tensor).release(tensor.offset, tensor.stored_bytes());
}

}  // namespace llmq
