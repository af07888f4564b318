// Reads the header of a safetensors file. The order of the checks is the reference reader's: length, place,
// text, offsets, shapes, sizes, end.
#include "io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/checked.h"
#include "base/error.h"
#include "base/json.h"
#include "io/damaged_file.h"
#include "io/foreign_file.h"

namespace llmq {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

constexpr std::string_view kJsonSpaces = " \t\n\r";

// Whether an object begins where the header does, at once or after a few spaces.
bool object_follows(std::span<const std::byte> bytes) {
  constexpr std::size_t kFew = 4096;
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), 8 + kFew));
  text.remove_prefix(std::min<std::size_t>(8, text.size()));
  const std::size_t first = text.find_first_not_of(kJsonSpaces);
  return first != std::string_view::npos && text[first] == '{';
}

// The JSON text of the header.
std::string_view header_text(std::span<const std::byte> bytes, const std::string& file) {
  if (!object_follows(bytes)) {
    if (const auto foreign = recognize_foreign_file(bytes, "safetensors"))
      fail(ErrorKind::kBadInput, {fmt::format("this is {}", foreign->what), file, {}, foreign->hint});
  }
  if (bytes.size() < 8)
    refuse_damaged(file, {}, fmt::format("the file has {} bytes, fewer than a header length", bytes.size()));
  std::uint64_t length = 0;
  static_assert(std::endian::native == std::endian::little);
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > kMaxHeaderBytes)
    refuse_damaged(
        file, {},
        fmt::format("the header claims {} bytes, more than the {} allowed", length, kMaxHeaderBytes));
  if (length > bytes.size() - 8)
    refuse_damaged(file, {},
                   fmt::format("the header claims {} bytes and the file ends {} bytes after its length",
                               length, bytes.size() - 8));
  std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, static_cast<std::size_t>(length));
  const std::size_t first = text.find_first_not_of(kJsonSpaces), last = text.find_last_not_of(kJsonSpaces);
  if (first == std::string_view::npos || text[first] != '{')
    refuse_damaged(file, "header", "does not begin with '{'");
  if (text[last] != '}')
    refuse_damaged(file, "header", "something other than spaces follows the JSON object");
  return text.substr(first, last + 1 - first);
}

void check_name(const std::string& name, const std::string& file) {
  if (name.size() > kMostTensorNameBytes)
    refuse_damaged(
        file, "header",
        fmt::format("a tensor name is {} bytes long, more than {}", name.size(), kMostTensorNameBytes));
  for (const char c : name)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      refuse_damaged(
          file, "header",
          fmt::format("a tensor name holds the control character 0x{:02x}", static_cast<unsigned>(c)));
}

std::uint64_t unsigned_integer(const Json& value, const char* what, const std::string& file,
                               const std::string& name) {
  if (!value.is_integer() || value.as_integer() < 0)
    refuse_damaged(file, name,
                   fmt::format("{} is {}, not a non-negative integer below 2^63", what, value.kind()));
  return static_cast<std::uint64_t>(value.as_integer());
}

DType read_dtype(const Json& value, const std::string& file, const std::string& name) {
  if (!value.is_string()) refuse_damaged(file, name, fmt::format("dtype is {}, not a string", value.kind()));
  const auto dtype = dtype_from_safetensors(value.as_string());
  if (!dtype)
    fail(ErrorKind::kUnsupported,
         {fmt::format("element type \"{}\" is not known here", value.as_string().substr(0, 32)), file, name,
          "convert the tensor to F32, F16 or BF16"});
  return *dtype;
}

Shape read_shape(const Json& value, const std::string& file, const std::string& name) {
  if (!value.is_array()) refuse_damaged(file, name, fmt::format("shape is {}, not an array", value.kind()));
  if (value.items().size() > Shape::kMaxRank)
    refuse_damaged(file, name,
                   fmt::format("shape has {} extents, more than {}", value.items().size(), Shape::kMaxRank));
  std::vector<std::int64_t> extents;
  std::uint64_t elements =
      1;  // a zero counts as one: no product of some of the extents may overflow, in whatever order
  for (const Json& item : value.items()) {
    const std::uint64_t extent = unsigned_integer(item, "an extent of the shape", file, name);
    const auto product = checked_mul(elements, std::max<std::uint64_t>(extent, 1));
    if (!product || *product > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      refuse_damaged(file, name, "the product of the shape overflows 63 bits");
    elements = *product;
    extents.push_back(static_cast<std::int64_t>(extent));
  }
  return Shape(std::span<const std::int64_t>(extents));
}

// One entry; offset still counts from the end of the header.
SafetensorsEntry read_entry(const std::string& name, const Json& value, const std::string& file) {
  check_name(name, file);
  if (!value.is_object())
    refuse_damaged(file, name, fmt::format("its description is {}, not an object", value.kind()));
  const Json* dtype = value.find("dtype");
  const Json* shape = value.find("shape");
  const Json* offsets = value.find("data_offsets");
  if (!dtype || !shape || !offsets)
    refuse_damaged(file, name, "its description must hold dtype, shape and data_offsets");
  SafetensorsEntry entry{name, read_dtype(*dtype, file, name), read_shape(*shape, file, name), 0, 0};
  if (!offsets->is_array() || offsets->items().size() != 2)
    refuse_damaged(file, name, "data_offsets is not a pair of integers");
  const std::uint64_t begin = unsigned_integer(offsets->items()[0], "data_offsets[0]", file, name);
  const std::uint64_t end = unsigned_integer(offsets->items()[1], "data_offsets[1]", file, name);
  if (end < begin)
    refuse_damaged(file, name, fmt::format("data_offsets end at {}, before their begin {}", end, begin));
  entry.offset = begin;
  entry.bytes = end - begin;
  const auto expected = stored_bytes(entry.dtype, static_cast<std::uint64_t>(entry.shape.elements()));
  if (!expected)
    refuse_damaged(file, name,
                   fmt::format("the size of {} {} overflows 64 bits, or ends inside a byte",
                               dtype_row(entry.dtype).name, entry.shape.text()));
  if (*expected != entry.bytes)
    refuse_damaged(file, name,
                   fmt::format("{} {} takes {} bytes and data_offsets span {}", dtype_row(entry.dtype).name,
                               entry.shape.text(), *expected, entry.bytes));
  return entry;
}

// null is what MLX writes where there is none.
std::map<std::string, std::string> read_metadata(const Json& value, const std::string& file) {
  if (value.is_null()) return {};
  if (!value.is_object())
    refuse_damaged(file, "__metadata__", fmt::format("is {}, not an object of strings", value.kind()));
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.members()) {
    if (!text.is_string())
      refuse_damaged(file, "__metadata__", fmt::format("a value is {}, not a string", text.kind()));
    metadata.emplace(key, text.as_string());
  }
  return metadata;
}

// Offsets leave no hole and no overlap and end where the file ends; turned into offsets from the start of the
// file.
void place_entries(std::vector<SafetensorsEntry>& entries, std::uint64_t data_begin, std::uint64_t file_bytes,
                   const std::string& file) {
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    if (a.offset != b.offset) return a.offset < b.offset;
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.name < b.name;
  });
  std::uint64_t end = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.offset != end)
      refuse_damaged(
          file, entry.name,
          fmt::format("begins at byte {} of the tensors and the one before it ends at {}: {}", entry.offset,
                      end, entry.offset < end ? "they overlap" : "there is a hole between them"));
    end = entry.offset + entry.bytes;  // both below 2^63
  }
  const std::uint64_t present = file_bytes - data_begin;
  if (end > present)
    refuse_damaged(
        file, {},
        fmt::format("the file is truncated: its tensors take {} bytes and {} are there", end, present));
  if (end < present)
    refuse_damaged(file, {},
                   fmt::format("{} bytes follow the last tensor and belong to none", present - end));
  for (SafetensorsEntry& entry : entries) entry.offset += data_begin;
}

}  // namespace

Lease hold_safetensors_header(const Mapping& mapping) {
  const std::uint64_t size = mapping.bytes().size();
  Lease first = mapping.lease(0, kIoBlock);
  std::uint64_t length = 0;
  if (size < sizeof length) return first;
  std::memcpy(&length, mapping.bytes().data(), sizeof length);
  if (length > std::min(size - sizeof length, kMaxHeaderBytes)) return first;  // which is refused
  return mapping.lease(0, std::max(kIoBlock, sizeof length + length));
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> bytes, const std::string& file) {
  const std::string_view text = header_text(bytes, file);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  JsonLimits limits;
  limits.max_bytes = kMaxHeaderBytes;
  limits.max_depth = 127;  // the reference's; members that nobody reads may be nested
  const Json json = Json::parse(text, file, limits);
  if (!json.is_object()) refuse_damaged(file, "header", "is not a JSON object");
  if (json.members().size() > kMostTensors)
    refuse_damaged(file, "header",
                   fmt::format("declares {} tensors, more than {}", json.members().size(), kMostTensors));
  SafetensorsHeader header;
  header.entries.reserve(json.members().size());
  for (const auto& [name, value] : json.members()) {
    if (name == "__metadata__")
      header.metadata = read_metadata(value, file);
    else
      header.entries.push_back(read_entry(name, value, file));
  }
  place_entries(header.entries, 8 + length, bytes.size(), file);
  return header;
}

}  // namespace llmq
