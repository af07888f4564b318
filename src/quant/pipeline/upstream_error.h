// What earlier rounding did to the residual stream, a linear that writes into it can take back in part.
//
//   e_t = (r_t - h_t) / s - W x_t,   C = sum_t e_t^T x_t,   W* = W + share C (G + lambda I)^-1,
//   lambda = 0.1 mean(diag G)
//
// h and x: residual stream before the linear and its input in the quantized model; r: the residual stream
// after the linear in the original one; s: the sublayer's residual scale; G = sum_t x_t^T x_t. share = 1 and
// lambda = 0 is least squares on the calibration tokens; less of both generalizes better (docs/adr/0004).
// The idea is that of GPTAQ (Li et al. 2025), Qronos (Zhang et al. 2025) and LoaQ (Lin and Wan 2025). Some
// chunks of the samples suffice: their sums are scaled to all tokens.
//
// Cost: one forward pass of the original block over those chunks, out * K products per token, 2 K^2 per row.
#pragma once
#include <span>

#include "quant/pipeline/activation_stream.h"

namespace llmq {

// The original model's samples: every `stride`-th chunk of the quantized model's.
struct OriginalStream {
  ActivationStream stream;
  CalibrationSet samples;
  std::int64_t stride = 1;
  std::vector<BlockWeights> weights;  // of the block at hand, on every device
};

// Samples of every stride-th chunk; enough chunks for about kOriginalTokens.
inline constexpr std::int64_t kOriginalTokens = 32768;
// One of so many chunks is taken.
std::int64_t original_stride(std::int64_t samples, std::int64_t length, std::int64_t chunk_tokens);
// On every device, and of every rank, that the quantized model's samples are on.
OriginalStream make_original_stream(std::span<const ForwardContext> devices,
                                    const CalibrationSet& calibration, std::int64_t chunk_tokens,
                                    const OpenStore& open_store, Ranks& ranks = alone());

// What that takes in bytes, for a linear [out, channels] and activations of `element` bytes.
struct UpstreamSizes {
  std::uint64_t out = 0, channels = 0, chunk_tokens = 0, element = 0;

  // C and the linear as it was prepared, beside either of the next.
  std::uint64_t sums() const { return out * channels * (8 + element); }
  // What one chunk's output lacks and its input, as they are and transposed, and their product: where the
  // host computes, and on a device that has memory of its own.
  std::uint64_t chunk() const {
    return chunk_tokens * (out * (std::uint64_t{5} * 4 + element) + channels * 3 * element) +
           out * channels * (4 + 4);
  }
  std::uint64_t chunk_on_device() const {
    return chunk_tokens * (out * (4 + 4 + element) + 2 * channels * element) + out * channels * 4;
  }
  // The factor that solves C, and the rows in hand; on a device as many as fit in its scratch memory.
  std::uint64_t solving() const;
  std::uint64_t solving_on_device(std::uint64_t scratch) const;
};

// Adds share C (G + lambda I)^-1 to `weight` [out, channels]. `missing` is C over `tokens` of the stats'
// tokens.
void apply_upstream_correction(std::span<float> weight, std::span<const double> missing, std::int64_t tokens,
                               const InputStats& stats, double share, Backend& backend);

}  // namespace llmq
