// The tables are made in memory and written first; every tensor has its place before the first byte of any
// comes.
#include "io/gguf_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>

#include "base/checked.h"
#include "base/error.h"
#include "io/put_number.h"

namespace llmq {
namespace {

constexpr std::uint32_t kVersion = 3;
constexpr std::uint64_t kAlignment = 32;    // what a file without general.alignment has
constexpr std::size_t kMostNameBytes = 63;  // GGML_MAX_NAME, with its closing zero
constexpr int kMostRank = 4;                // GGML_MAX_DIMS

template <typename T>
std::string bytes_of(T value) {
  std::string bytes;
  put_number(bytes, value);
  return bytes;
}

void put_gguf_text(std::string& bytes, std::string_view text) {
  put_number(bytes, static_cast<std::uint64_t>(text.size()));
  bytes += text;
}

void put_type(std::string& bytes, GgufType type) { put_number(bytes, static_cast<std::uint32_t>(type)); }

template <typename T>
std::string array_of(GgufType type, std::span<const T> values) {
  std::string bytes;
  put_type(bytes, type);
  put_number(bytes, static_cast<std::uint64_t>(values.size()));
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  return bytes;
}

struct TensorSlot {
  std::uint64_t offset = 0, bytes = 0, written = 0;  // offset from the first byte of the file
};

std::uint64_t gguf_bytes(const TensorDeclaration& tensor, const std::string& file) {
  const auto refuse = [&](std::string message) {
    fail(ErrorKind::kUnsupported, {std::move(message), file, tensor.name, "write safetensors instead"});
  };
  const DTypeRow& type = dtype_row(tensor.dtype);
  if (type.ggml_type < 0) refuse(fmt::format("GGUF cannot hold {}", type.name));
  if (tensor.name.empty() || tensor.name.size() > kMostNameBytes)
    refuse(
        fmt::format("a tensor's name of {} bytes; GGUF has room for {}", tensor.name.size(), kMostNameBytes));
  if (tensor.shape.rank() < 1 || tensor.shape.rank() > kMostRank)
    refuse(fmt::format("the shape {} has {} dimensions; GGUF has 1 to {}", tensor.shape.text(),
                       tensor.shape.rank(), kMostRank));
  const auto block = static_cast<std::uint64_t>(type.block_elements);
  if (static_cast<std::uint64_t>(tensor.shape.back()) % block != 0)
    fail(ErrorKind::kInternal,
         {fmt::format("rows of {} values are not whole blocks of {}", tensor.shape.back(), type.name),
          file,
          tensor.name,
          {}});
  const auto bytes = checked_mul(static_cast<std::uint64_t>(tensor.shape.elements()) / block,
                                 static_cast<std::uint64_t>(type.block_bytes));
  if (!bytes || *bytes > UINT64_MAX - kAlignment) refuse("the declared size overflows");
  return *bytes;
}

void put_tensor(std::string& bytes, const TensorDeclaration& tensor, std::uint64_t offset) {
  put_gguf_text(bytes, tensor.name);
  put_number(bytes, static_cast<std::uint32_t>(tensor.shape.rank()));
  for (int axis = tensor.shape.rank(); axis-- > 0;)
    put_number(bytes, static_cast<std::uint64_t>(tensor.shape[axis]));
  put_number(bytes, static_cast<std::uint32_t>(dtype_row(tensor.dtype).ggml_type));
  put_number(bytes, offset);
}

}  // namespace

void GgufMetadata::set(std::string_view key, GgufType type, std::string bytes) {
  for (Entry& entry : entries_)
    if (entry.key == key) {
      entry.type = type;
      entry.bytes = std::move(bytes);
      return;
    }
  entries_.push_back({std::string(key), type, std::move(bytes)});
}

void GgufMetadata::set_u16(std::string_view key, std::uint16_t value) {
  set(key, GgufType::kU16, bytes_of(value));
}
void GgufMetadata::set_u32(std::string_view key, std::uint32_t value) {
  set(key, GgufType::kU32, bytes_of(value));
}
void GgufMetadata::set_i32(std::string_view key, std::int32_t value) {
  set(key, GgufType::kI32, bytes_of(value));
}
void GgufMetadata::set_f32(std::string_view key, float value) { set(key, GgufType::kF32, bytes_of(value)); }

void GgufMetadata::set_bool(std::string_view key, bool value) {
  set(key, GgufType::kBool, std::string(1, value ? '\1' : '\0'));
}

void GgufMetadata::set_string(std::string_view key, std::string_view value) {
  std::string bytes;
  put_gguf_text(bytes, value);
  set(key, GgufType::kString, std::move(bytes));
}

void GgufMetadata::set_strings(std::string_view key, std::span<const std::string> values) {
  std::string bytes;
  put_type(bytes, GgufType::kString);
  put_number(bytes, static_cast<std::uint64_t>(values.size()));
  for (const std::string& value : values) put_gguf_text(bytes, value);
  set(key, GgufType::kArray, std::move(bytes));
}

void GgufMetadata::set_i32s(std::string_view key, std::span<const std::int32_t> values) {
  set(key, GgufType::kArray, array_of(GgufType::kI32, values));
}

void GgufMetadata::set_f32s(std::string_view key, std::span<const float> values) {
  set(key, GgufType::kArray, array_of(GgufType::kF32, values));
}

void GgufMetadata::set_bools(std::string_view key, std::span<const std::uint8_t> values) {
  set(key, GgufType::kArray, array_of(GgufType::kBool, values));
}

void GgufMetadata::set_value(std::string_view key, const GgufValue& value) {
  std::string bytes;
  if (value.is_array()) {
    put_type(bytes, value.element_type);
    put_number(bytes, value.count);
  }
  bytes.append(reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size());
  set(key, value.type, std::move(bytes));
}

void GgufMetadata::erase(std::string_view key) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.key == key; });
}

const GgufMetadata::Entry* GgufMetadata::find(std::string_view key) const {
  for (const Entry& entry : entries_)
    if (entry.key == key) return &entry;
  return nullptr;
}

std::vector<std::vector<TensorDeclaration>> split_gguf(const std::vector<TensorDeclaration>& declarations,
                                                       std::uint64_t most, const std::string& file) {
  std::vector<std::vector<TensorDeclaration>> parts(1);
  std::uint64_t taken = 0;
  for (const TensorDeclaration& tensor : declarations) {
    const std::uint64_t bytes = round_up(gguf_bytes(tensor, file), kAlignment);
    if (most != 0 && !parts.back().empty() && (taken > most || bytes > most - taken)) {
      parts.emplace_back();
      taken = 0;
    }
    parts.back().push_back(tensor);
    taken += bytes;
  }
  if (parts.size() > UINT16_MAX)
    fail(ErrorKind::kUsage, {fmt::format("the model would be split into {} files", parts.size()),
                             file,
                             {},
                             "allow more bytes in each"});
  return parts;
}

void say_gguf_part(int number, int count, std::size_t tensors, GgufMetadata& metadata) {
  metadata.set_u16("split.no", static_cast<std::uint16_t>(number));
  metadata.set_u16("split.count", static_cast<std::uint16_t>(count));
  metadata.set_i32("split.tensors.count", static_cast<std::int32_t>(tensors));
}

struct GgufWriter::State {
  std::optional<PlacedFile> file;
  std::unordered_map<std::string, TensorSlot> slots;

  TensorSlot& slot(const std::string& name) {
    const auto found = slots.find(name);
    if (found == slots.end())
      fail(ErrorKind::kInternal, {"the tensor was not declared", file->target().string(), name, {}});
    return found->second;
  }
};

GgufWriter::GgufWriter(Io& io, Path target, const GgufMetadata& metadata,
                       const std::vector<TensorDeclaration>& declarations, FilePlace place)
    : state_(std::make_unique<State>()) {
  std::string tables = "GGUF";
  put_number(tables, kVersion);
  put_number(tables, static_cast<std::uint64_t>(declarations.size()));
  put_number(tables, static_cast<std::uint64_t>(metadata.entries().size()));
  for (const GgufMetadata::Entry& entry : metadata.entries()) {
    put_gguf_text(tables, entry.key);
    put_type(tables, entry.type);
    tables += entry.bytes;
  }
  std::uint64_t end = 0;
  for (const TensorDeclaration& tensor : declarations) {
    const std::uint64_t bytes = gguf_bytes(tensor, target.string());
    const auto next = checked_add(end, round_up(bytes, kAlignment));
    if (!next || !state_->slots.emplace(tensor.name, TensorSlot{end, bytes, 0}).second)
      fail(ErrorKind::kInternal,
           {"a tensor is declared twice or is too large", target.string(), tensor.name, {}});
    put_tensor(tables, tensor, end);
    end = *next;
  }
  tables.resize(static_cast<std::size_t>(round_up(tables.size(), kAlignment)), '\0');

  for (auto& [name, slot] : state_->slots) slot.offset += tables.size();
  // The padding is what was never written: zeros.
  state_->file.emplace(io, std::move(target), tables.size() + end, place, std::as_bytes(std::span(tables)));
}

GgufWriter::~GgufWriter() = default;
GgufWriter::GgufWriter(GgufWriter&&) noexcept = default;

void GgufWriter::append(const std::string& name, std::span<const std::byte> bytes) {
  TensorSlot& place = state_->slot(name);
  if (bytes.size() > place.bytes - place.written)
    fail(ErrorKind::kInternal, {fmt::format("{} bytes came where {} of {} were left", bytes.size(),
                                            place.bytes - place.written, place.bytes),
                                state_->file->target().string(),
                                name,
                                {}});
  state_->file->write_at(place.offset + place.written, bytes);
  place.written += bytes.size();
}

bool GgufWriter::accept(const std::string& name, std::string_view sha256) {
  TensorSlot& place = state_->slot(name);
  if (place.written != 0 || !state_->file->holds(place.offset, place.bytes, sha256)) return false;
  place.written = place.bytes;
  return true;
}

bool GgufWriter::is_whole(const std::string& name) const {
  const TensorSlot& place = state_->slot(name);
  return place.written == place.bytes;
}

void GgufWriter::sync() { state_->file->sync(); }

void GgufWriter::finish() {
  for (const auto& [name, slot] : state_->slots)
    if (slot.written != slot.bytes)
      fail(ErrorKind::kInternal, {fmt::format("{} of {} declared bytes came", slot.written, slot.bytes),
                                  state_->file->target().string(),
                                  name,
                                  {}});
  state_->file->finish();
}

std::uint64_t GgufWriter::file_bytes() const { return state_->file->bytes(); }

}  // namespace llmq
