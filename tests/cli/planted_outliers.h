// A model with outliers whose function is the old one: in each norm of each block the `count` largest gains
// times `factor`, the columns of their readers divided by it, channel c of a norm with those of q, k, v or of
// gate and up.
//
//   (factor g_c norm(h)_c) (W_nc / factor) = (g_c norm(h)_c) W_nc    up to FP32 rounding
//
// What such a channel does: activations of one magnitude become activations with a few huge channels, as
// large models grow them by themselves, and the weights that read them become tiny beside their neighbours.
#pragma once
#include <cstddef>
#include <string>

namespace llmq::testing {

// `model`: a directory with one model.safetensors in F32, changed in place.
void plant_outliers(const std::string& model, std::size_t count, float factor);

}  // namespace llmq::testing
