// Files built byte by byte, so that tests can lie in any field; and what every refusal must look like.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/gguf.h"

namespace llmq::testing {

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

template <typename T>
std::string little_endian(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// A safetensors file of this header and this many bytes of tensors.
inline std::string safetensors_file(std::string_view header, std::size_t tensor_bytes = 0) {
  return little_endian<std::uint64_t>(header.size()) + std::string(header) +
         std::string(tensor_bytes, '\x01');
}

inline std::string gguf_text(std::string_view text) {
  return little_endian<std::uint64_t>(text.size()) + std::string(text);
}

// A GGUF file as a list of keys and tensors; the counts can be made to lie.
class GgufBytes {
 public:
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;  // of the layout; write general.alignment as a key to announce it
  std::uint64_t key_lie = 0, tensor_lie = 0;  // added to the counts
  std::uint64_t trailing = 0;                 // bytes after the last tensor

  GgufBytes& key(std::string_view name, GgufType type, std::string_view value) {
    keys_ += gguf_text(name) + little_endian(static_cast<std::uint32_t>(type)) + std::string(value);
    ++key_count_;
    return *this;
  }
  GgufBytes& u32(std::string_view name, std::uint32_t value) {
    return key(name, GgufType::kU32, little_endian(value));
  }
  GgufBytes& f32(std::string_view name, float value) {
    return key(name, GgufType::kF32, little_endian(value));
  }
  GgufBytes& text(std::string_view name, std::string_view value) {
    return key(name, GgufType::kString, gguf_text(value));
  }
  GgufBytes& array(std::string_view name, GgufType element, std::uint64_t count, std::string_view values) {
    return key(
        name, GgufType::kArray,
        little_endian(static_cast<std::uint32_t>(element)) + little_endian(count) + std::string(values));
  }
  // `extents` innermost first, as in the file. `offset` counts from the start of the tensors.
  GgufBytes& raw_tensor(std::string_view name, const std::vector<std::uint64_t>& extents, std::uint32_t type,
                        std::uint64_t offset, std::string_view bytes) {
    tensors_ += gguf_text(name) + little_endian(static_cast<std::uint32_t>(extents.size()));
    for (const std::uint64_t extent : extents) tensors_ += little_endian(extent);
    tensors_ += little_endian(type) + little_endian(offset);
    data_ += bytes;
    ++tensor_count_;
    return *this;
  }
  // FP32 values, laid out behind the tensor before.
  GgufBytes& tensor(std::string_view name, const std::vector<std::uint64_t>& extents,
                    const std::vector<float>& values) {
    data_.resize((data_.size() + alignment - 1) / alignment * alignment, '\0');
    return raw_tensor(
        name, extents, 0, data_.size(),
        std::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
  }

  std::string bytes() const {
    std::string file = "GGUF" + little_endian(version) + little_endian(tensor_count_ + tensor_lie) +
                       little_endian(key_count_ + key_lie) + keys_ + tensors_;
    if (tensor_count_ > 0) file.resize((file.size() + alignment - 1) / alignment * alignment, '\0');
    return file + data_ + std::string(trailing, '\0');
  }

 private:
  std::string keys_, tensors_, data_;
  std::uint64_t key_count_ = 0, tensor_count_ = 0;
};

// A file that lies, and what its refusal says.
struct Attack {
  const char* what;
  std::string file;
  const char* expected;
  ErrorKind kind = ErrorKind::kBadInput;
};

// Runs `act`, which must throw an Error of `kind` with a file and a sentence that holds `part` (in its
// message, place or hint).
template <typename Act>
void expect_refusal(ErrorKind kind, std::string_view part, Act act) {
  try {
    act();
    ADD_FAILURE() << "nothing was refused; expected: " << part;
  } catch (const Error& error) {
    const ErrorDetail& detail = error.detail();
    const std::string all = detail.file + ": " + detail.where + ": " + detail.message + "; " + detail.hint;
    EXPECT_EQ(error.kind(), kind) << all;
    EXPECT_FALSE(detail.file.empty()) << all;
    EXPECT_GE(detail.message.size(), 10u) << all;
    EXPECT_NE(all.find(part), std::string::npos) << "expected \"" << part << "\" in: " << all;
  }
}

}  // namespace llmq::testing
