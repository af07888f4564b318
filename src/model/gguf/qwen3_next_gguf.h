// GGUF's tables of Qwen3-Next and Qwen3.5, dense and with experts (qwen3_next.cpp).
#pragma once
#include "model/gguf/gguf_family.h"

namespace llmq {

extern const GgufFamily kQwen3NextGguf, kQwen35Gguf, kQwen35MoeGguf;

}  // namespace llmq
