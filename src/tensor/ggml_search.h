// ggml's searches for the scale (and minimum) of a few numbers that share one, in ggml's order of operations:
// each returns the very float and codes that ggml-quants.c computes. All minimize sum_i w_i (x_i - x'_i)^2
// over a few candidates.
//
// A candidate fixes the codes, and least squares then gives its scale. Candidates (symmetric) or runs
// (affine, where each candidate starts from the ones before) lie side by side in a vector's lanes; every lane
// adds up in element order, so lanes change no bit. Cost per number: about 3 (symmetric) or 6 (affine) vector
// operations for each candidate.
#pragma once
#include <cstdint>
#include <cstring>

namespace llmq {

inline constexpr float kNoNumbers = 1e-15f;  // numbers none of which is larger are taken for zeros

// Up to 32 numbers and what an error in each costs.
struct WeightedRun {
  const float* x;
  const float* weight;
  int size;
};

// To the nearest integer, ties to even, for |value| < 2^22. Beyond, and for NaN: what ggml gets there, so
// that degenerate blocks agree as well.
inline int nearest_int(float value) {
  const float shifted = value + 0x1.8p23f;
  std::uint32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  return static_cast<int>(bits & 0x007fffffu) - 0x00400000;
}

// ggml's make_qx_quants with weights: x' = scale * (q - zero), q in [0, 2 zero). 19 candidates around the
// scale that gives the largest number the code 0.
float search_symmetric(WeightedRun run, int zero, std::uint8_t* q);

// make_q3_quants: one rounding by the largest number, then up to five sweeps that move one code at a time.
float sweep_symmetric(WeightedRun run, int zero, std::uint8_t* q);

// make_qp_quants: x' = scale * q, q in [0, top], for x >= 0. Nine candidates, then the sweeps.
float search_positive(WeightedRun run, int top, std::uint8_t* q);

// make_qkx2_quants, make_qkx3_quants: x' = scale * q - minimum, q in [0, top], minimum >= 0, for four runs at
// once, which follow each other (x, weight and q hold 4 * size numbers). Candidate i spreads the numbers
// above the minimum found so far over top + first + i * step codes. `absolute`: candidates are judged by |x -
// x'| instead of its square.
inline constexpr int kAffineRuns = 4;
struct AffineCandidates {
  float first, step;
  int count;
  bool absolute = false;
};
struct AffineFit {
  float scale, minimum;
};
void search_affine(WeightedRun first, int top, AffineCandidates candidates, AffineFit* fits, std::uint8_t* q);

}  // namespace llmq
