// The activations of an MLP, which a backend applies to numbers or to a gate. GELU is x Phi(x) with the
// normal distribution's Phi, exactly (kGelu) or by the usual tanh (kGeluTanh). The sigmoid is a gate alone.
// kClampedSwiglu is g / (1 + exp(-1.702 g)) of g = min(x, 7), and what a gate multiplies is then not u but
// min(max(u, -7), 7) + 1.
#pragma once

namespace llmq {

enum class Activation : unsigned char { kSilu, kGeluTanh, kGelu, kRelu, kSigmoid, kClampedSwiglu };
inline constexpr int kActivations = 6;
inline constexpr float kSwigluLimit = 7, kSwigluSlope = 1.702f;

}  // namespace llmq
