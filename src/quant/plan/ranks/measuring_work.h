// What the measuring pass of mixed precision is made of, by what ranks share of it
// (quant/mixed_precision/sensitivity.h), from the plan's shapes alone.
//
//   by samples    forward passes and triangles, W T and K^2 T of T tokens; dealt by chunks
//   dealt         losses of rows, N K^2 for each candidate and where a scale is looked for, and what makes
//                 codes row by row; and the forks, W P of P probe tokens for each block behind each of them;
//                 1 / N of it is a rank's
//   by each       factors, K^3 for each linear and candidate whose codes the method makes by columns, and the
//                 probes of the original model
//
// Operations count alike, whatever their type; what a mixture's experts see of the samples is counted as all
// of them.
#pragma once
#include <cstdint>

#include "quant/plan/plan.h"

namespace llmq {

// Nothing of a plan without a budget of bits.
struct MeasuringWork {
  std::uint64_t triangles = 0, magnitudes = 0, divergences = 0;  // FP64 numbers that all learn
  std::uint64_t codes = 0, losses = 0;                           // bytes of which each rank makes a part
  double by_samples = 0, dealt = 0, by_each = 0;                 // operations
  double operations() const { return by_samples + dealt + by_each; }
};
MeasuringWork measuring_work(const Plan& plan, const ModelSpec& spec);

// Chunks of the samples that are measured; 0: none are.
std::int64_t measured_chunks(const Plan& plan);

// How many losses of rows the rounding of a linear asks for: of what it is rounded to, and where AWQ does so
// of every range of a group that it tries, or of floats in groups by the importance of columns as well.
std::uint64_t rounding_losses(const Plan& plan, const QuantScheme& scheme, bool by_method, std::uint64_t rows,
                              std::uint64_t groups);

inline constexpr std::uint64_t kLossBytes = 8;

// Whether the method makes codes of these by columns, on a host, where ranks are dealt their rows; and what
// travels then: a byte for each code, and five for the scale and zero point of each group of a row.
bool deals_codes(const Plan& plan, const QuantScheme& scheme);
std::uint64_t dealt_code_bytes(std::uint64_t rows, std::uint64_t columns, std::uint64_t groups);

// Of a size, which is never below 0.
constexpr std::uint64_t counted(std::int64_t size) { return size < 0 ? 0 : static_cast<std::uint64_t>(size); }

}  // namespace llmq
