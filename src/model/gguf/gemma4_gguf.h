// GGUF's table of Gemma 4 (families/gemma4.cpp).
#pragma once
#include "model/gguf/gguf_family.h"

namespace llmq {

extern const GgufFamily kGemma4Gguf;

}  // namespace llmq
