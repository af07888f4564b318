// What llama.cpp takes for granted of an architecture, and a model may have otherwise: activations, ropes,
// windows, experts, norms, factors that no key says.
#pragma once
#include <string>

#include "model/gguf/gguf_family.h"
#include "model/model_spec.h"

namespace llmq {

// What GGUF makes of the model's family. Error(kUnsupported) for what GGUF's architecture does not compute:
// another activation or rope scaling, sliding windows of Qwen, biases that llama.cpp has no place for.
const GgufFamily& check_gguf_family(const ModelSpec& spec, const std::string& file);

}  // namespace llmq
