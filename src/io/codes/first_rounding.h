// What rounded a tensor's numbers before this checkpoint was opened: who rounds them again adds a loss to one
// that stays, and says so.
#pragma once
#include <string>
#include <string_view>

#include "io/checkpoint.h"

namespace llmq {

// "Q4_K", "FP8 in blocks of 128 x 128", "NF4", "FP4", "LLM.int8", "MXFP4", "MLX codes of 4 bits"; empty where
// the tensor is stored as plain numbers.
std::string first_rounding(const StoredTensor& tensor);

// The warning of one tensor or module, for all that are stored so.
std::string told_of_second_rounding(std::string_view name, std::string_view form);

}  // namespace llmq
