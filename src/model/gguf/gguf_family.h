// Finds which family a GGUF file is of, and what GGUF calls a family.
#pragma once
#include <string_view>

#include "io/gguf.h"
#include "model/families/family.h"

namespace llmq {

// By general.architecture and whether there is a sliding window; its `gguf` is there. Error(kUnsupported)
// naming the architectures that are read.
const Family& family_of_gguf(const GgufHeader& header);

// Of the family of this name; nullptr: it is neither read from GGUF nor written as such.
const GgufFamily* gguf_family(std::string_view model_type);

}  // namespace llmq
