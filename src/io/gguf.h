// GGUF: magic, version, a table of key-value metadata, a table of tensors, padding, the tensors each padded
// to the alignment.
//
// Versions 2 and 3, little-endian. Every count is held against the bytes that are left before anything is
// allocated, every product and sum is checked, keys and names are unique, the alignment is a power of two,
// and tensors neither overlap nor leave the file. A tensor's extents are turned around on reading: Shape is
// outermost first, as everywhere in llmq. parse_gguf() sees memory only, so that the fuzz target needs no
// file. Values are views into those bytes: a vocabulary of 150,000 tokens costs nothing until somebody asks
// for it. Source: ggml's docs/gguf.md. What is read and written: docs/reference/formats.md.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/io.h"
#include "tensor/tensor_view.h"

namespace llmq {

enum class GgufType : std::uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

struct GgufValue {
  GgufType type = GgufType::kU8;
  GgufType element_type = GgufType::kU8;  // of an array; else equal to `type`
  std::uint64_t count = 1;                // elements of an array; else 1
  std::span<const std::byte> bytes;       // of the elements; strings with their length words

  bool is_array() const { return type == GgufType::kArray; }
  bool is_string() const { return type == GgufType::kString; }
};

struct GgufTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;                          // outermost first
  std::uint64_t offset = 0, bytes = 0;  // from the first byte of the file
  const std::byte* data = nullptr;      // that byte of what was parsed
  int part = 0;                         // of a split model: the file that it lies in
};

// Looks into the bytes it was parsed from, which must outlive it. Typed reads throw Error(kBadInput) naming
// file and key: at() and the like when the key is missing or its value is of another kind, the find_ forms
// only for the latter.
class GgufHeader {
 public:
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;
  std::string file;                                        // its name in errors
  std::map<std::string, GgufValue, std::less<>> metadata;  // by key
  std::vector<GgufTensor> tensors;                         // by part and offset

  const GgufValue* find(std::string_view key) const;
  const GgufValue& at(std::string_view key) const;

  std::int64_t integer(std::string_view key) const;  // any integer type that fits int64
  double number(std::string_view key) const;         // integers too
  bool boolean(std::string_view key) const;
  std::string_view string(std::string_view key) const;
  std::vector<std::string_view> strings(std::string_view key) const;
  std::vector<std::int64_t> integers(
      std::string_view key) const;                          // of an array of any integer type (or bool)
  std::vector<double> numbers(std::string_view key) const;  // of an array of any number type

  std::optional<std::int64_t> find_integer(std::string_view key) const;
  std::optional<double> find_number(std::string_view key) const;
  std::optional<bool> find_boolean(std::string_view key) const;
  std::optional<std::string_view> find_string(std::string_view key) const;
};

// `bytes` is the whole file; `file` names it in errors. Errors: kBadInput; kUnsupported for versions, byte
// orders and tensor types unknown here.
GgufHeader parse_gguf(std::span<const std::byte> bytes, const std::string& file);

// A mapped file and its parsed header; or the files of a split model, as one: the metadata are the first's,
// without split.*, the tensors those of all.
//
//   NAME-00001-of-00003.gguf   split.no 0, split.count 3, split.tensors.count; all other keys
//   NAME-00002-of-00003.gguf   split.no 1, ...                 (llama.cpp's converter and llama-gguf-split)
struct GgufFile {
  std::vector<Path> paths;
  std::vector<std::shared_ptr<const Mapping>> mappings;  // as the paths
  GgufHeader header;
  const Mapping& mapping(const GgufTensor& tensor) const {
    return *mappings[static_cast<std::size_t>(tensor.part)];
  }
};
// The name of part `number`, from 1 on, of `count`; of `stem` without ".gguf".
std::string gguf_part_name(std::string_view stem, int number, int count);
// Of NAME-00001-of-00003.gguf the names of the further parts; none of any other name.
std::vector<std::string> further_gguf_parts(const std::string& first);
// `path` is a file, or the first of a split model's. Error(kBadInput) naming the part that is missing or is
// of another model; Error(kUsage) for another than the first.
GgufFile open_gguf(Io& io, const Path& path);

}  // namespace llmq
