#include "runtime/speculation.h"

#include <algorithm>

namespace llmq {
namespace {

// Hopeful, so that a drafter is tried at all: four guesses of which so many were right.
constexpr double kHope = 0.8, kHopeWeight = 4, kEngineWeight = 4;
constexpr double kEngineMemory = 0.998, kSequenceMemory = 0.98;
// 16 of BF16, as measured on memory-bound machines: 1.07 of a pass at 2 rows, 1.19 at 4
constexpr double kFreeRowsPerByte = 8, kMostFreeRows = 16;
constexpr std::int64_t kMostPatience = 1024, kTrialGuesses = 2;

double engine_share(const Acceptance& engine) {
  return (engine.right + kHope * kHopeWeight) / (engine.looked_at + kHopeWeight);
}

}  // namespace

void Acceptance::record(std::int64_t guesses, std::int64_t accepted, double memory) {
  right = right * memory + static_cast<double>(accepted);
  looked_at = looked_at * memory + static_cast<double>(std::min(guesses, accepted + 1));
}

double Speculation::free_rows_of(double bytes, double weights) {
  return std::clamp(kFreeRowsPerByte * bytes / std::max(1.0, weights), 1.0, kMostFreeRows);
}

double Speculation::rate(double p, std::int64_t guesses, std::int64_t sequences) const {
  double tokens = 0, chance = 1;
  for (std::int64_t i = 0; i <= guesses; ++i, chance *= p) tokens += chance;
  const auto s = static_cast<double>(sequences), k = static_cast<double>(guesses);
  return tokens * pass(s) / (pass(s * (k + 1)) + k * guess_cost_ * pass(s));
}

std::int64_t Speculation::best(double p, std::int64_t sequences) const {
  std::int64_t best = 0;
  for (std::int64_t k = 1; k <= kMostGuesses; ++k)
    if (rate(p, k, sequences) > rate(p, best, sequences)) best = k;
  return best;
}

std::int64_t Speculation::usual_guesses(std::int64_t sequences) const {
  return fixed_ > 0 ? fixed_ : best(engine_share(engine_), sequences);
}

std::int64_t Speculation::guesses(Sequence& sequence, std::int64_t sequences) const {
  if (fixed_ > 0) return fixed_;
  const Acceptance& own = sequence.acceptance;
  const double p = (own.right + engine_share(engine_) * kEngineWeight) / (own.looked_at + kEngineWeight);
  if (const std::int64_t k = best(p, sequences); k > 0) {
    sequence.silent = 0;
    sequence.patience = 32;
    return k;
  }
  if (++sequence.silent < sequence.patience) return 0;
  sequence.silent = 0;
  sequence.patience = std::min(2 * sequence.patience, kMostPatience);
  return kTrialGuesses;
}

void Speculation::record(Sequence& sequence, std::int64_t guesses, std::int64_t accepted) {
  sequence.acceptance.record(guesses, accepted, kSequenceMemory);
  engine_.record(guesses, accepted, kEngineMemory);
}

}  // namespace llmq
