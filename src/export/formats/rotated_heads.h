// What a config may say of rotations that are in the weights already (quant/rotation/value_rotation.h).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace llmq {

// Linears between which heads were rotated, by checkpoint names.
struct RotatedHeads {
  std::int64_t size = 0;  // channels that one matrix rotates
  std::vector<std::string> values, outputs;
};

}  // namespace llmq
