// Reads the two tables of a GGUF file: a cursor that never passes the end, counts held against what is left,
// sums that cannot wrap.
#include "io/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>

#include "base/checked.h"
#include "base/error.h"
#include "io/damaged_file.h"
#include "io/foreign_file.h"
#include "io/gguf_types.h"

namespace llmq {
namespace {

constexpr std::uint64_t kMaxKeys = 1'000'000;
constexpr std::uint64_t kMaxKeyBytes = 65'535;  // gguf.md
constexpr std::uint32_t kMaxRank = 4;           // GGML_MAX_DIMS
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;         // length, one letter, type, one byte
constexpr std::uint64_t kMinTensorBytes = 8 + 1 + 4 + 4 + 8;  // length, one letter, rank 0, type, offset

class GgufCursor {
 public:
  GgufCursor(std::span<const std::byte> bytes, const std::string& file) : bytes_(bytes), file_(file) {}
  std::uint64_t position() const { return position_; }
  std::uint64_t left() const { return bytes_.size() - position_; }

  std::span<const std::byte> take(std::uint64_t count, const std::string& where) {
    if (count > left())
      refuse_damaged(file_, where,
                     fmt::format("{} bytes are announced at byte {} and the file ends {} bytes later", count,
                                 position_, left()));
    const auto taken = bytes_.subspan(static_cast<std::size_t>(position_), static_cast<std::size_t>(count));
    position_ += count;
    return taken;
  }
  template <typename T>
  T number(const std::string& where) {
    return load_value<T>(take(sizeof(T), where).data());
  }
  std::string_view text(std::uint64_t limit, const std::string& where) {
    const auto length = number<std::uint64_t>(where);
    if (length > limit)
      refuse_damaged(file_, where, fmt::format("a text of {} bytes is longer than {}", length, limit));
    const auto bytes = take(length, where);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& file_;
  std::uint64_t position_ = 0;
};

void check_name(std::string_view name, const char* what, std::uint64_t index, const std::string& file) {
  if (name.empty()) refuse_damaged(file, fmt::format("{} {}", what, index), "its name is empty");
  for (const char c : name)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      refuse_damaged(file, fmt::format("{} {}", what, index), "its name holds a control character");
}

GgufType read_type(GgufCursor& cursor, const std::string& key, const std::string& file) {
  const auto type = cursor.number<std::uint32_t>(key);
  if (type >= kGgufTypes.size()) refuse_damaged(file, key, fmt::format("value type {} does not exist", type));
  return static_cast<GgufType>(type);
}

// The bytes of `count` values of one type, each string and boolean looked at.
std::span<const std::byte> take_values(GgufCursor& cursor, std::span<const std::byte> file_bytes,
                                       GgufType type, std::uint64_t count, const std::string& key,
                                       const std::string& file) {
  if (type == GgufType::kString) {
    if (count > cursor.left() / 8)
      refuse_damaged(file, key,
                     fmt::format("{} strings cannot fit in the {} bytes left", count, cursor.left()));
    const std::uint64_t begin = cursor.position();
    for (std::uint64_t i = 0; i < count; ++i) cursor.text(std::numeric_limits<std::uint64_t>::max(), key);
    return file_bytes.subspan(static_cast<std::size_t>(begin),
                              static_cast<std::size_t>(cursor.position() - begin));
  }
  const auto size = checked_mul(count, type_row(type).bytes);
  if (!size)
    refuse_damaged(file, key,
                   fmt::format("the size of {} values of type {} overflows", count, type_row(type).name));
  const auto bytes = cursor.take(*size, key);
  if (type == GgufType::kBool)
    for (const std::byte b : bytes)
      if (b > std::byte{1})
        refuse_damaged(file, key, fmt::format("a boolean is {}, not 0 or 1", static_cast<int>(b)));
  return bytes;
}

GgufValue read_value(GgufCursor& cursor, std::span<const std::byte> file_bytes, const std::string& key,
                     const std::string& file) {
  GgufValue value;
  value.type = read_type(cursor, key, file);
  value.element_type = value.type;
  if (value.is_array()) {
    value.element_type = read_type(cursor, key, file);
    if (value.element_type == GgufType::kArray)
      fail(ErrorKind::kUnsupported, {"an array of arrays is not read", file, key, {}});
    value.count = cursor.number<std::uint64_t>(key);
  }
  value.bytes = take_values(cursor, file_bytes, value.element_type, value.count, key, file);
  return value;
}

// Types that ggml names and nobody reads here.
std::string ggml_type_name(std::uint32_t type) {
  constexpr std::array<std::pair<std::uint32_t, const char*>, 4> kNames{
      {{9, "Q8_1"}, {15, "Q8_K"}, {41, "Q1_0"}, {42, "Q2_0"}}};
  for (const auto& [id, name] : kNames)
    if (id == type) return name;
  return fmt::format("number {}", type);
}

// Bytes of a tensor whose rows are whole blocks.
std::uint64_t tensor_bytes(DType dtype, const Shape& shape, const std::string& name,
                           const std::string& file) {
  const auto block = static_cast<std::uint64_t>(dtype_row(dtype).block_elements);
  if (static_cast<std::uint64_t>(shape.back()) % block != 0)
    refuse_damaged(file, name,
                   fmt::format("rows of {} values are not whole blocks of {} ({})", shape.back(), block,
                               dtype_row(dtype).name));
  const auto bytes = checked_mul(static_cast<std::uint64_t>(shape.elements()) / block,
                                 static_cast<std::uint64_t>(dtype_row(dtype).block_bytes));
  if (!bytes || *bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    refuse_damaged(file, name, "the size of the tensor overflows 63 bits");
  return *bytes;
}

// `offset` still counts from the start of the tensor data.
GgufTensor read_tensor(GgufCursor& cursor, std::uint64_t index, std::uint64_t alignment,
                       const std::string& file) {
  GgufTensor tensor;
  const std::string_view name = cursor.text(kMostTensorNameBytes, fmt::format("tensor {}", index));
  check_name(name, "tensor", index, file);
  tensor.name = name;
  const auto rank = cursor.number<std::uint32_t>(tensor.name);
  if (rank > kMaxRank)
    refuse_damaged(file, tensor.name, fmt::format("has {} dimensions, more than {}", rank, kMaxRank));
  std::array<std::int64_t, kMaxRank> extents{};
  std::uint64_t elements =
      1;  // a zero counts as one: no product of some of the extents may overflow, in whatever order
  for (std::uint32_t axis = 0; axis < rank; ++axis) {
    const auto extent = cursor.number<std::uint64_t>(tensor.name);
    const auto product = checked_mul(elements, std::max<std::uint64_t>(extent, 1));
    constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (extent > kMax || !product || *product > kMax)
      refuse_damaged(file, tensor.name, "the product of its dimensions overflows 63 bits");
    elements = *product;
    extents[rank - 1 - axis] = static_cast<std::int64_t>(extent);
  }
  tensor.shape = Shape(std::span<const std::int64_t>(extents.data(), rank));
  const auto type = cursor.number<std::uint32_t>(tensor.name);
  const auto dtype = dtype_from_ggml(type);
  if (!dtype)
    fail(ErrorKind::kUnsupported,
         {fmt::format("tensor type {} is not read", ggml_type_name(type)), file, tensor.name,
          "use a file of F32, F16, BF16, Q4_0 to Q8_0, Q2_K to Q6_K, IQ, TQ, MXFP4 or NVFP4 tensors"});
  tensor.dtype = *dtype;
  tensor.bytes = tensor_bytes(tensor.dtype, tensor.shape, tensor.name, file);
  tensor.offset = cursor.number<std::uint64_t>(tensor.name);
  if (tensor.offset % alignment != 0)
    refuse_damaged(file, tensor.name,
                   fmt::format("its offset {} is not a multiple of {}", tensor.offset, alignment));
  return tensor;
}

std::uint64_t read_alignment(const GgufHeader& header) {
  const GgufValue* value = header.find("general.alignment");
  if (!value) return kDefaultAlignment;
  const std::string key = "general.alignment";
  if (value->type != GgufType::kU32)
    refuse_damaged(header.file, key, fmt::format("is of type {}, not uint32", type_row(value->type).name));
  const auto alignment = load_value<std::uint32_t>(value->bytes.data());
  if (!std::has_single_bit(alignment))
    refuse_damaged(header.file, key, fmt::format("is {}, not a power of two", alignment));
  return alignment;
}

// Each tensor begins where the one before it, padded, ends; the last one ends the file, padded or not.
// Offsets become those of the file.
void place_tensors(GgufHeader& header, std::uint64_t tables_end, std::span<const std::byte> bytes) {
  const std::uint64_t file_bytes = bytes.size();
  const std::string& file = header.file;
  auto& tensors = header.tensors;
  std::sort(tensors.begin(), tensors.end(), [](const GgufTensor& a, const GgufTensor& b) {
    if (a.offset != b.offset) return a.offset < b.offset;
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.name < b.name;
  });
  const std::uint64_t mask = header.alignment - 1;
  std::uint64_t end = 0, padded = 0;
  for (const GgufTensor& tensor : tensors) {
    if (tensor.offset != padded)
      refuse_damaged(
          file, tensor.name,
          fmt::format(
              "begins at byte {} of the tensors where byte {} was due: {}", tensor.offset, padded,
              tensor.offset < padded ? "it overlaps the one before it" : "there is a hole before it"));
    const auto sum = checked_add(tensor.offset, tensor.bytes);
    const auto rounded = sum ? checked_add(*sum, mask) : std::nullopt;
    if (!rounded) refuse_damaged(file, tensor.name, "its end overflows 64 bits");
    end = *sum;
    padded = *rounded & ~mask;
  }
  const std::uint64_t data_begin =
      (tables_end + mask) & ~mask;  // far below 2^63: a file's size and a 32-bit mask
  if (tensors.empty()) {
    if (file_bytes > data_begin)
      refuse_damaged(
          file, {},
          fmt::format("{} bytes follow the tables and belong to no tensor", file_bytes - data_begin));
    return;
  }
  if (data_begin > file_bytes || end > file_bytes - data_begin)
    refuse_damaged(
        file, tensors.back().name,
        fmt::format("the file is truncated: its tensors take {} bytes from byte {} on and the file has {}",
                    end, data_begin, file_bytes));
  if (file_bytes - data_begin > padded)
    refuse_damaged(
        file, {},
        fmt::format("{} bytes follow the last tensor and belong to none", file_bytes - data_begin - padded));
  for (GgufTensor& tensor : tensors) {
    tensor.offset += data_begin;
    tensor.data = bytes.data() + tensor.offset;
  }
}

std::uint32_t read_version(GgufCursor& cursor, std::span<const std::byte> bytes, const std::string& file) {
  if (bytes.size() < 4 || std::memcmp(bytes.data(), "GGUF", 4) != 0) {
    if (const auto foreign = recognize_foreign_file(bytes, "GGUF"))
      fail(ErrorKind::kBadInput, {fmt::format("this is {}", foreign->what), file, {}, foreign->hint});
    refuse_damaged(file, {}, "does not begin with \"GGUF\"");
  }
  cursor.take(4, "magic");
  const auto version = cursor.number<std::uint32_t>("version");
  if (version == __builtin_bswap32(2) || version == __builtin_bswap32(3))
    fail(ErrorKind::kUnsupported, {"the file is big-endian", file, "version",
                                   "convert it with gguf_convert_endian.py of the gguf package"});
  if (version != 2 && version != 3)
    fail(ErrorKind::kUnsupported,
         {fmt::format("GGUF version {} is not read", version), file, "version", "versions 2 and 3 are"});
  return version;
}

}  // namespace

GgufHeader parse_gguf(std::span<const std::byte> bytes, const std::string& file) {
  GgufCursor cursor(bytes, file);
  GgufHeader header;
  header.file = file;
  header.version = read_version(cursor, bytes, file);
  const auto tensors = cursor.number<std::uint64_t>("tensor count");
  const auto keys = cursor.number<std::uint64_t>("key count");
  if (keys > kMaxKeys || keys > cursor.left() / kMinKeyBytes)
    refuse_damaged(file, "key count",
                   fmt::format("{} keys cannot fit in the {} bytes left", keys, cursor.left()));
  for (std::uint64_t i = 0; i < keys; ++i) {
    const std::string key(cursor.text(kMaxKeyBytes, fmt::format("key {}", i)));
    check_name(key, "key", i, file);
    GgufValue value = read_value(cursor, bytes, key, file);
    if (!header.metadata.emplace(key, value).second) refuse_damaged(file, key, "the key occurs twice");
  }
  header.alignment = read_alignment(header);
  if (tensors > kMostTensors || tensors > cursor.left() / kMinTensorBytes)
    refuse_damaged(file, "tensor count",
                   fmt::format("{} tensors cannot fit in the {} bytes left", tensors, cursor.left()));
  header.tensors.reserve(static_cast<std::size_t>(tensors));
  for (std::uint64_t i = 0; i < tensors; ++i)
    header.tensors.push_back(read_tensor(cursor, i, header.alignment, file));
  std::set<std::string_view> names;
  for (const GgufTensor& tensor : header.tensors)
    if (!names.insert(tensor.name).second) refuse_damaged(file, tensor.name, "the tensor occurs twice");
  place_tensors(header, cursor.position(), bytes);
  return header;
}

}  // namespace llmq
