// Weights of a GGUF that are multiplied by a number of their own, NAME.scale beside NAME.weight: NVFP4 as
// llama.cpp's converter writes it. The number is a StoredTensor::block_scales of one block.
//
//   NVFP4      w = e2m1(q) (e4m3(s) scale), each product rounded to FP32, as modelopt has it
//   any other  w = (what is stored) scale
#pragma once
#include <span>

#include "base/threads.h"
#include "io/checkpoint.h"

namespace llmq {

// What `tensor` is multiplied by; 1 where nothing stands beside it.
float gguf_scale(const StoredTensor& tensor);
// All values of one that has a scale, in the model's order, while it is held.
void read_scaled_rows(const StoredTensor& tensor, std::span<float> into, ThreadPool& pool);

}  // namespace llmq
