// The options of all methods. Those of a recipe are what it says; those of a plan are complete
// (complete_options() in quant/methods/registry.h).
#pragma once
#include "quant/methods/awq/awq_options.h"
#include "quant/methods/gptq/gptq_options.h"
#include "quant/methods/smoothquant/smoothquant_options.h"

namespace llmq {

// Scales of floats in groups (quant/methods/float_groups.h): keys floats.*.
struct FloatGroupOptions {
  bool search = true;         // else compressed-tensors' own
  bool power_of_two = false;  // the global scale, as the format wants it (PackedFormatRow::global_form)
  bool operator==(const FloatGroupOptions&) const = default;
};

struct MethodOptions {
  AwqOptions awq;
  GptqOptions gptq;
  FloatGroupOptions floats;
  SmoothQuantOptions smoothquant;
};

}  // namespace llmq
