// Where two files of weights part: the first tensor, as they lie in the first file, whose bytes are not the
// same.
#pragma once
#include <string>

#include "base/io.h"

namespace llmq {

// Two .safetensors or two .gguf files, by their names. "the table of tensors" where that is what differs;
// empty for other files, for equal ones, and where one of them cannot be read.
std::string first_difference(Io& io, const Path& a, const Path& b);

}  // namespace llmq
