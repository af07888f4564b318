// Tensors that another program wrote beside the numbers that it made them of.
#pragma once
#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <vector>

#include "export/formats/packed_formats.h"
#include "io/checkpoint.h"

namespace llmq::testing {

// Each tensor is, to the byte, the one of its name that is stored.
inline void expect_stored(std::span<const PackedTensor> tensors, const Checkpoint& stored) {
  for (const PackedTensor& tensor : tensors) {
    const StoredTensor& theirs = stored.at(tensor.declaration.name);
    EXPECT_EQ(tensor.declaration.dtype, theirs.view.dtype) << theirs.name;
    EXPECT_EQ(tensor.declaration.shape, theirs.view.shape) << theirs.name;
    const auto* const bytes = theirs.view.as<const std::byte>();
    EXPECT_EQ(tensor.bytes, std::vector<std::byte>(bytes, bytes + theirs.view.bytes())) << theirs.name;
  }
}

}  // namespace llmq::testing
