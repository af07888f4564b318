// Opens a checkpoint of any container: what a GGUF's metadata say is read as the model knows it, and matrices
// that a family stacks in one tensor are tensors of their own.
#pragma once
#include <string>

#include "io/checkpoint.h"

namespace llmq {

// A directory in Hugging Face layout, a .gguf file, or a hub name found in the local cache (io/hub.h).
// Errors: kBadInput; kUnsupported for a GGUF of an architecture or with metadata that no config can say.
Checkpoint open_checkpoint(Io& io, const std::string& model);

}  // namespace llmq
