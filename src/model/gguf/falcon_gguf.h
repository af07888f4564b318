// GGUF's table of Falcon (families/falcon.cpp).
#pragma once
#include "model/gguf/gguf_family.h"

namespace llmq {

extern const GgufFamily kFalconGguf;

}  // namespace llmq
