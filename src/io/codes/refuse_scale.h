// The sentence about a number that multiplies codes and cannot.
#pragma once
#include <string>

namespace llmq {

// "has the scale NaN for PLACE, and WANTED". Throws Error(kBadInput) with the file and the tensor.
[[noreturn]] void refuse_scale(float scale, const std::string& place, const std::string& wanted,
                               const std::string& file, const std::string& tensor);

}  // namespace llmq
