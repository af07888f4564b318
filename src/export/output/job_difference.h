// Why two jobs would not write the same bytes, in words.
#pragma once
#include <string>

#include "base/json.h"

namespace llmq {

// "recipe.awq.grid was 20 and is 5; model.model.safetensors has changed"; empty where they are equal,
// whatever the order of members.
std::string job_difference(const Json& before, const Json& now);

}  // namespace llmq
