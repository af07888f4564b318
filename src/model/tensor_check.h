// A ModelSpec against the tensors actually stored, both ways: every tensor it needs has its shape, and none
// is left that nobody reads.
#pragma once
#include <string>

#include "io/checkpoint.h"
#include "model/model_spec.h"

namespace llmq {

// Names of the embedding and the head. Tied models may store either: both then mean the stored tensor.
void resolve_head(const Checkpoint& checkpoint, bool tied, ModelSpec& spec);

// Errors name the tensor, what was found, and the file and sizes that ask for something else.
void check_tensors(const Checkpoint& checkpoint, const std::string& config_file, const ModelSpec& spec);

}  // namespace llmq
