// What an engine says of its weights: which kernel serves which, in the log and for machines.
#pragma once
#include <string>

#include "base/json.h"
#include "runtime/engine.h"

namespace llmq {

// --head: stored or int8. Error(kUsage) for another word.
HeadWeight head_weight(const std::string& word);
// Which kernel serves which weights: one line in the log, with a warning for each that could be faster; and
// for machines.
void log_kernels(const Engine& engine);
Json kernels_json(const Engine& engine);

}  // namespace llmq
