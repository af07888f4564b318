// GGUF's table of Llama 4 (families/llama4.cpp).
#pragma once
#include "model/gguf/gguf_family.h"

namespace llmq {

extern const GgufFamily kLlama4Gguf;

}  // namespace llmq
