// The options of all methods. Those of a recipe are what it says; those of a plan are complete
// (complete_options() in quant/methods/registry.h).
#pragma once
#include "quant/methods/awq/awq_options.h"
#include "quant/methods/gptq/gptq_options.h"
#include "quant/methods/smoothquant/smoothquant_options.h"

namespace llmq {

struct MethodOptions {
  AwqOptions awq;
  GptqOptions gptq;
  SmoothQuantOptions smoothquant;
};

}  // namespace llmq
