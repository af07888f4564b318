// Values of a checkpoint in the element type that is written.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "tensor/dtype.h"

namespace llmq {

// Rounds to nearest even; a finite value that leaves F16's range is an error, never an infinity. The error
// names the tensor and the file.
void store_values(std::span<const float> values, DType dtype, const std::string& tensor,
                  const std::string& file, std::byte* into);

// A tensor of plain elements goes through a small window; block types are dequantized (and un-permuted) whole
// by the checkpoint.
std::vector<std::byte> converted_tensor(const Checkpoint& checkpoint, const StoredTensor& tensor,
                                        DType dtype);

}  // namespace llmq
