// A model with outliers whose function is the old one: in each block some gains of both norms times `gain`, the
// columns of their readers divided by it, channel c of a norm with those of q, k, v or of gate and up.
//
//   (gain g_c norm(h)_c) (W_nc / gain) = (g_c norm(h)_c) W_nc    up to FP32 rounding
//
// What such a channel does: activations of one magnitude become activations with a few huge channels, as large models
// grow them by themselves, and the weights that read them become tiny beside their neighbours.
#pragma once
#include <string>
#include <vector>

namespace llmq::testing {

// `model`: a directory with one model.safetensors in F32, changed in place.
void plant_outliers(const std::string& model, const std::vector<std::size_t>& channels, float gain);

}  // namespace llmq::testing
