// A packed checkpoint (compressed-tensors, AWQ, GPTQ, AutoRound, modelopt) as the dense one that it stands
// for: each packed linear is a matrix of FP32 numbers, which are made of its codes whenever they are read, to
// the bits of LinearSource::weight(). What says how they were packed is gone from the config, and so are the
// scales of inputs and of a KV cache. For who rounds the linears again: a run of the model has more use for
// their codes. Nothing is read here but headers.
//
// Cost of a reading: the packed bytes, and until the numbers are there a byte for each code and five for each
// group.
#pragma once
#include <optional>

#include "io/checkpoint.h"

namespace llmq {

// Numbers that are changed whenever they are read (export/changed_tensor.h).
class ChangedNumbers : public Unpacking {
 public:
  // The type that they are rounded to; none: FP32 as they come out.
  virtual std::optional<DType> rounded_to() const = 0;
  // Whether they were made of codes before.
  virtual bool of_codes() const = 0;
  // Of the FP32 numbers that a reading takes beside the tensor's own.
  virtual std::uint64_t bytes_beside() const = 0;
  // Of what changes them that is read once and kept, which direct reads hold in memory.
  virtual std::uint64_t bytes_kept_beside() const = 0;
};
// Null for a tensor that is read as it is stored, or unpacked.
const ChangedNumbers* changed_numbers(const StoredTensor& tensor);

// A checkpoint without packed linears is returned as it is. Errors as LinearSource::open() and its
// packed_shape().
Checkpoint unpacked(const Checkpoint& checkpoint);

// Whether it is such a one.
bool is_unpacked(const Checkpoint& checkpoint);

// The type of a tensor as it is stored, which numbers of its own are written in; of changed ones that
// which they are rounded to; of one that is unpacked that of the first tensor of 16 bits beside it, else
// BF16.
DType stored_type(const Checkpoint& checkpoint, const StoredTensor& tensor);

}  // namespace llmq
