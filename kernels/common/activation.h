// The activations of an MLP, which a backend applies to numbers or to a gate. GELU is x Phi(x) with the
// normal distribution's Phi, exactly (kGelu) or by the usual tanh (kGeluTanh). The sigmoid is a gate alone.
#pragma once

namespace llmq {

enum class Activation : unsigned char { kSilu, kGeluTanh, kGelu, kRelu, kSigmoid };
inline constexpr int kActivations = 5;

}  // namespace llmq
