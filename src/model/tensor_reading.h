// Stored tensors read with care: shape and type are what they must be, values are finite, and what is wrong
// is said by name, file and place.
#pragma once
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/threads.h"
#include "base/zeroed_numbers.h"
#include "io/checkpoint.h"

namespace llmq {

// Error(kBadInput)
[[noreturn]] void bad_tensor(const Checkpoint& checkpoint, const std::string& name, std::string message,
                             std::string hint = {});
// Error(kUnsupported)
[[noreturn]] void unsupported_tensor(const Checkpoint& checkpoint, const std::string& name,
                                     std::string message, std::string hint = {});

// By name; or bad_tensor().
const StoredTensor& find_tensor(const Checkpoint& checkpoint, const std::string& name);
// Of this type and shape; or unsupported_tensor(), bad_tensor().
const StoredTensor& expect(const Checkpoint& checkpoint, const std::string& name, DType dtype,
                           const Shape& shape);
// F32, F16 or BF16 of one of these shapes.
const StoredTensor& expect_scales(const Checkpoint& checkpoint, const std::string& name,
                                  std::initializer_list<Shape> shapes);

// Bytes of a file need not be aligned for their type.
template <typename T>
std::vector<T> copy_elements(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  const Lease lease = checkpoint.hold(tensor);
  std::vector<T> values(tensor.view.bytes() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), tensor.view.pointer, values.size() * sizeof(T));
  return values;
}

bool all_finite(std::span<const float> values);
// "holds NaN at row 1, column 2", of the first that is not finite; `values` are rows from `first_row` on.
std::string first_nonfinite(std::span<const float> values, std::int64_t columns, std::int64_t first_row = 0);
// A scale by which something is divided; or bad_tensor().
void expect_reciprocal(const Checkpoint& checkpoint, const StoredTensor& tensor, float scale);
// Throws where a value is not finite, saying where; shows every band of rows that it has looked at.
void scan_finite(const Checkpoint& checkpoint, const StoredTensor& tensor,
                 const Checkpoint::EachBand& see = {});
std::vector<float> read_finite(const Checkpoint& checkpoint, const StoredTensor& tensor,
                               bool allow_nonfinite);
// By all threads, into memory that they touch first.
ZeroedNumbers<float> read_finite(const Checkpoint& checkpoint, const StoredTensor& tensor,
                                 bool allow_nonfinite, ThreadPool& pool);

}  // namespace llmq
