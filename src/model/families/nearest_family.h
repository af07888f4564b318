// Which families are nearest to a checkpoint of a family that is not known.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "io/checkpoint.h"

namespace llmq {

// How many letters are to be written, left out or replaced to make one of the other.
std::size_t edit_distance(std::string_view one, std::string_view other);
// The first of `known` that is nearest to `asked`, where less than half of its letters change; else empty.
std::string nearest_name(std::string_view asked, std::span<const std::string_view> known);

// "nearest are gemma3 by its name, and llama by its tensors, of which it names and shapes 20 of 24"; either
// half is left out where nothing is near, and all of it may be empty. Reads no weight.
std::string nearest_families(const Checkpoint& checkpoint, std::string_view model_type);

}  // namespace llmq
