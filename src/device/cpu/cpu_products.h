// Products of linears that run together, whatever kinds of weights they have.
#pragma once
#include <span>

#include "device/cpu/cpu_weight.h"
#include "device/cpu/product_items.h"

namespace llmq {

// At most kMostCallsAtOnce, none of whose results is an input of another; weights of work's kernels.
void multiply(const CpuWork& work, std::span<const ProductCall<CpuWeight>> calls);

}  // namespace llmq
