// The page of `llmq estimate`: what each scheme takes and how fast it could be, and where its steps lie below
// the machine's roofline.
#pragma once
#include <string>

#include "quant/plan/capacity_estimate.h"

namespace llmq {

std::string estimate_page(const Estimate& estimate);

}  // namespace llmq
