// GGUF v3, streamed: metadata and tensors declared up front, tensors fed in any order, the name given only by
// finish().
//
// Layout: magic, version, counts, the metadata in the order in which keys were first set, the tensor table
// and the tensors in the order of the declarations, everything from the tensors on padded with zeros to 32
// bytes. The same input gives the same bytes. Room for the whole file is reserved at once; where the bytes
// lie until then is FilePlace's to say. Source: ggml's docs/gguf.md and gguf.cpp.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf.h"
#include "io/safetensors.h"

namespace llmq {

// Keys with their values, as they will lie in the file. Setting a key again keeps its place.
class GgufMetadata {
 public:
  struct Entry {
    std::string key;
    GgufType type = GgufType::kU8;
    std::string bytes;  // what follows the type: for an array, element type and count first
  };

  void set_u16(std::string_view key, std::uint16_t value);
  void set_u32(std::string_view key, std::uint32_t value);
  void set_i32(std::string_view key, std::int32_t value);
  void set_f32(std::string_view key, float value);
  void set_bool(std::string_view key, bool value);
  void set_string(std::string_view key, std::string_view value);
  void set_strings(std::string_view key, std::span<const std::string> values);
  void set_i32s(std::string_view key, std::span<const std::int32_t> values);
  void set_f32s(std::string_view key, std::span<const float> values);
  void set_bools(std::string_view key, std::span<const std::uint8_t> values);  // 0 or 1
  void set_value(std::string_view key, const GgufValue& value);                // as another file has it
  void erase(std::string_view key);

  const Entry* find(std::string_view key) const;
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  void set(std::string_view key, GgufType type, std::string bytes);
  std::vector<Entry> entries_;
};

// The tensors of each file of a model that is split, in their order: a file ends before a tensor that would
// have its tensors take more than `most` bytes, padding included. 0: one file. One tensor may be larger.
std::vector<std::vector<TensorDeclaration>> split_gguf(const std::vector<TensorDeclaration>& declarations,
                                                       std::uint64_t most, const std::string& file);
// What such a file says of itself (io/gguf.h), behind the other keys.
void say_gguf_part(int number, int count, std::size_t tensors, GgufMetadata& metadata);

class GgufWriter {
 public:
  // Block types hold whole blocks in a row. Error(kUnsupported) for a name or a rank that ggml cannot hold.
  GgufWriter(Io& io, Path target, const GgufMetadata& metadata,
             const std::vector<TensorDeclaration>& declarations, FilePlace place = FilePlace::kPartial);
  ~GgufWriter();
  GgufWriter(GgufWriter&&) noexcept;
  // The next bytes of a tensor; it is whole when as many came as were declared.
  void append(const std::string& name, std::span<const std::byte> bytes);
  // Whether the file holds a tensor of this SHA-256 already, which then counts as given.
  bool accept(const std::string& name, std::string_view sha256);
  bool is_whole(const std::string& name) const;
  void sync();    // what was given so far is on the disk
  void finish();  // Error(kInternal) when a declared tensor is not whole
  std::uint64_t file_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llmq
