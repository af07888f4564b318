// Activation-aware weight quantization (Lin et al. 2023), judged by the Gram matrix instead of forward
// passes: the scale search. The rounding that follows it is in quant/methods/awq/clip_search.h.
//
// Scale search, one s per input channel shared by all readers of an input:
//   s = x^r, or x^r / w^(1-r) (duo),  r = i / grid,  x = mean |x| per channel,  w = mean over rows of |W| /
//   max of its group; s /= sqrt(max s * min s);  loss(s) = sum over readers tr(D G D^T),  D = Q(W diag(s))
//   diag(1/s) - W;  the identity is always a candidate.
// All candidates are judged on an even sample of the rows, the best of them again on every row. Cost: 2 K^2
// per row and candidate, and the sample.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "quant/methods/awq/awq_options.h"
#include "quant/methods/scale_problem.h"

namespace llmq {

struct AwqScales {
  std::vector<float> s;                // per channel; all 1 when no candidate beats the identity
  double loss = 0, identity_loss = 0;  // over all rows of all readers
  bool identity = true;
};

// The loss of given scales, over all rows of all readers.
double awq_scale_loss(const ScaleProblem& problem, std::span<const float> s, Backend& backend);

// Rows between those of the sample, of so many rows of all readers, the smallest of which has `smallest`: of
// many small readers each gives a row or more, and not all of them the same one.
std::int64_t scale_sample_stride(std::int64_t rows, std::int64_t smallest);
// How many losses of rows a search asks for, of readers with so many rows each: all candidates' on the
// sample, and the best ones' on every row where the sample is not every row.
std::uint64_t scale_search_losses(std::span<const std::int64_t> readers, const AwqOptions& options);

AwqScales search_awq_scales(const ScaleProblem& problem, const AwqOptions& options, Backend& backend);

}  // namespace llmq
