// A packed checkpoint (compressed-tensors, AWQ, GPTQ, AutoRound, modelopt) as the dense one that it stands
// for: each packed linear is a matrix of FP32 numbers, which are made of its codes whenever they are read, to
// the bits of LinearSource::weight(). What says how they were packed is gone from the config, and so are the
// scales of inputs and of a KV cache. For who rounds the linears again: a run of the model has more use for
// their codes. Nothing is read here but headers.
//
// Cost of a reading: the packed bytes, and until the numbers are there a byte for each code and five for each
// group.
#pragma once
#include "io/checkpoint.h"

namespace llmq {

// A checkpoint without packed linears is returned as it is. Errors as LinearSource::open() and its
// packed_shape().
Checkpoint unpacked(const Checkpoint& checkpoint);

// Whether it is such a one.
bool is_unpacked(const Checkpoint& checkpoint);

// The type of a tensor as it is stored, which numbers of its own are written in; of one that is unpacked that
// of the first tensor of 16 bits beside it, else BF16.
DType stored_type(const Checkpoint& checkpoint, const StoredTensor& tensor);

}  // namespace llmq
