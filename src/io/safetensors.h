// safetensors: 8 bytes of header length, a JSON header, the tensors back to back.
//
// Reader rules, those of the reference reader (PyPI safetensors 0.8.0): length >= 8, inside the file and <=
// 100,000,000; a JSON object in UTF-8, with spaces around it; __metadata__ string -> string, or null;
// members of a tensor beyond its three are passed over; offsets sorted leave no hole and no overlap; shape
// products and byte sizes checked; the last end equals the file length. Beyond them: no duplicate key at any
// level; names <= 4 KiB without control characters; <= 8 extents, no product of any of them over 63 bits; <=
// 1 M tensors. tests/interop/safetensors_check.py holds both readers against each other, and says why each of
// these. A file that is something else (Git LFS pointer, HTML, zip/pickle, GGUF, gzip) is named as such.
// parse() sees memory only, so that the fuzz target needs no file.
#pragma once
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/io.h"
#include "io/partial_file.h"
#include "tensor/tensor_view.h"

namespace llmq {

struct SafetensorsEntry {
  std::string name;
  DType dtype;
  Shape shape;
  std::uint64_t offset = 0, bytes = 0;  // from the first byte of the file
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // by offset
  std::map<std::string, std::string> metadata;
};

// `bytes` is the whole file; `file` names it in errors. Errors: kBadInput, kUnsupported for a dtype unknown
// here.
SafetensorsHeader parse_safetensors(std::span<const std::byte> bytes, const std::string& file);

// As much of the file as the parser looks at.
Lease hold_safetensors_header(const Mapping& mapping);

struct TensorDeclaration {
  std::string name;
  DType dtype;
  Shape shape;
};

// Streams one .safetensors file: declared up front, fed in any order. Layout: widest element first, then by
// name; the header is padded to 8. The same input gives the same bytes.
class SafetensorsWriter {
 public:
  SafetensorsWriter(Io& io, Path target, std::vector<TensorDeclaration> declarations,
                    const std::map<std::string, std::string>& metadata,
                    FilePlace place = FilePlace::kPartial);
  ~SafetensorsWriter();
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  void add(const std::string& name, std::span<const std::byte> bytes);
  void append(const std::string& name, std::span<const std::byte> bytes);  // the next bytes of a tensor
  // Whether the tensor's bytes in the file have this SHA-256; and that they count as given.
  bool holds(const std::string& name, std::string_view sha256) const;
  void accept(const std::string& name);
  void sync() { begin_sync()(); }      // what was given so far is on the disk
  std::function<void()> begin_sync();  // PlacedFile::begin_sync()
  void finish();                       // Error(kInternal) when a declared tensor never came
  std::uint64_t file_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llmq
