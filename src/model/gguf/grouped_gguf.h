// GGUF's tables of GLM-4.5 (glm4_moe.cpp), and of DeepSeek V2 and V3, Kimi-K2 and GLM-4.7-Flash
// (deepseek.cpp).
#pragma once
#include "model/gguf/gguf_family.h"

namespace llmq {

extern const GgufFamily kGlm4MoeGguf, kDeepseekV2Gguf, kDeepseekV3Gguf, kGlm4MoeLiteGguf;

}  // namespace llmq
