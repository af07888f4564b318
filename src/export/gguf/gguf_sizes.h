// "<architecture>.*" of a model: what GgufKey names, in the order in which the family has it.
#pragma once
#include "export/gguf/type_mix.h"
#include "io/checkpoint.h"
#include "io/gguf_writer.h"
#include "model/gguf/gguf_family.h"
#include "model/model_spec.h"

namespace llmq {

inline constexpr const char* kFileTypeKey = "general.file_type";

void add_gguf_sizes(const Checkpoint& checkpoint, const ModelSpec& spec, const GgufFamily& family,
                    const GgufFileType& file_type, GgufMetadata& metadata);

}  // namespace llmq
