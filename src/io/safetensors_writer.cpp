// Writes one safetensors file whose layout is known from the declarations alone, so that tensors may come in
// any order.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <unordered_map>

#include "base/checked.h"
#include "base/error.h"
#include "base/json.h"
#include "io/safetensors.h"

namespace llmq {
namespace {

struct Slot {
  std::uint64_t offset = 0, bytes = 0;  // from the first byte of the file
  bool written = false;                 // whole
  std::uint64_t filled = 0;             // of a tensor that comes in pieces
};

std::uint64_t declared_bytes(const TensorDeclaration& declaration, const std::string& file) {
  if (dtype_row(declaration.dtype).safetensors_name.empty())
    fail(ErrorKind::kInternal, {fmt::format("safetensors cannot hold {}", dtype_row(declaration.dtype).name),
                                file,
                                declaration.name,
                                {}});
  const auto bytes =
      stored_bytes(declaration.dtype, static_cast<std::uint64_t>(declaration.shape.elements()));
  if (!bytes)
    fail(ErrorKind::kInternal,
         {"the declared size overflows or ends inside a byte", file, declaration.name, {}});
  return *bytes;
}

std::string metadata_member(const std::map<std::string, std::string>& metadata) {
  Json object = Json::object();
  for (const auto& [key, value] : metadata) object[key] = value;
  return "\"__metadata__\":" + object.dump();
}

std::string tensor_member(const TensorDeclaration& declaration, std::uint64_t begin, std::uint64_t end) {
  std::string extents;
  for (int axis = 0; axis < declaration.shape.rank(); ++axis)
    extents += fmt::format("{}{}", axis == 0 ? "" : ",", declaration.shape[axis]);
  return fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                     Json(declaration.name).dump(), dtype_row(declaration.dtype).safetensors_name, extents,
                     begin, end);
}

}  // namespace

struct SafetensorsWriter::State {
  std::optional<PlacedFile> file;
  std::unordered_map<std::string, Slot> slots;

  Slot& slot(const std::string& name) {
    const auto found = slots.find(name);
    if (found == slots.end())
      fail(ErrorKind::kInternal, {"the tensor was not declared", file->target().string(), name, {}});
    return found->second;
  }
};

SafetensorsWriter::SafetensorsWriter(Io& io, Path target, std::vector<TensorDeclaration> declarations,
                                     const std::map<std::string, std::string>& metadata, FilePlace place)
    : state_(std::make_unique<State>()) {
  std::sort(declarations.begin(), declarations.end(),
            [](const TensorDeclaration& a, const TensorDeclaration& b) {
              const int width_a = alignment(a.dtype), width_b = alignment(b.dtype);
              return width_a != width_b ? width_a > width_b : a.name < b.name;
            });
  std::string header = "{";
  if (!metadata.empty()) header += metadata_member(metadata);
  std::uint64_t end = 0;
  for (const TensorDeclaration& declaration : declarations) {
    const auto next = checked_add(end, declared_bytes(declaration, target.string()));
    if (!next || !state_->slots.emplace(declaration.name, Slot{end, *next - end}).second ||
        declaration.name == "__metadata__")
      fail(ErrorKind::kInternal,
           {"a tensor is declared twice or is too large", target.string(), declaration.name, {}});
    if (header.size() > 1) header += ',';
    header += tensor_member(declaration, end, *next);
    end = *next;
  }
  header += '}';
  header.resize(static_cast<std::size_t>(round_up(header.size(), 8)), ' ');

  const std::uint64_t length = header.size(), data_begin = 8 + length;
  for (auto& [name, slot] : state_->slots) slot.offset += data_begin;
  std::string prefix(8, '\0');
  std::memcpy(prefix.data(), &length, sizeof length);
  prefix += header;
  state_->file.emplace(io, std::move(target), data_begin + end, place, std::as_bytes(std::span(prefix)));
}

SafetensorsWriter::~SafetensorsWriter() = default;
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;

void SafetensorsWriter::add(const std::string& name, std::span<const std::byte> bytes) {
  Slot& slot = state_->slot(name);
  const std::string file = state_->file->target().string();
  if (slot.written) fail(ErrorKind::kInternal, {"the tensor came twice", file, name, {}});
  if (slot.bytes != bytes.size())
    fail(ErrorKind::kInternal,
         {fmt::format("{} bytes came where {} were declared", bytes.size(), slot.bytes), file, name, {}});
  state_->file->write_at(slot.offset, bytes);
  slot.written = true;
}

void SafetensorsWriter::append(const std::string& name, std::span<const std::byte> bytes) {
  Slot& slot = state_->slot(name);
  if (slot.written || bytes.size() > slot.bytes - slot.filled)
    fail(ErrorKind::kInternal,
         {fmt::format("{} bytes came behind {} of the {} declared", bytes.size(), slot.filled, slot.bytes),
          state_->file->target().string(),
          name,
          {}});
  state_->file->write_at(slot.offset + slot.filled, bytes);
  slot.filled += bytes.size();
  slot.written = slot.filled == slot.bytes;
}

bool SafetensorsWriter::holds(const std::string& name, std::string_view sha256) const {
  const Slot& slot = state_->slot(name);
  return state_->file->holds(slot.offset, slot.bytes, sha256);
}

void SafetensorsWriter::accept(const std::string& name) { state_->slot(name).written = true; }

std::function<void()> SafetensorsWriter::begin_sync() { return state_->file->begin_sync(); }

void SafetensorsWriter::finish() {
  for (const auto& [name, slot] : state_->slots)
    if (!slot.written)
      fail(ErrorKind::kInternal, {"a declared tensor never came", state_->file->target().string(), name, {}});
  state_->file->finish();
}

std::uint64_t SafetensorsWriter::file_bytes() const { return state_->file->bytes(); }

}  // namespace llmq
