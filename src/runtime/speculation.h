// How many guesses a round of speculation should have, by the acceptance that was measured.
//
// With probability p that a guess is right while those before it were, a round of k guesses gives
//
//   tokens(k) = (1 - p^(k+1)) / (1 - p)
//
// tokens. What it costs is counted in rows and bytes, never with a clock: the same requests in the same order
// always have the same rounds, so statistics can be compared and a failure repeated. A pass over m rows costs
// 1 + (m - 1) / free_rows of one over a single row: what is read is shared by the rows, what is multiplied is
// not, so fewer rows are free the fewer bytes a weight has (free_rows_of). A guess costs `guess_cost` of a
// pass over a single row more. With s sequences in a step the rate against no guesses is
//
//   rate(k) = tokens(k) * pass(s) / (pass(s * (k + 1)) + k * guess_cost * pass(s)),   rate(0) = 1,
//
// and the k of the greatest rate is taken: 0 where guessing loses. p is that of the sequence, with what the
// whole engine measured as its prior; older rounds count less. A sequence that does not speculate tries again
// after 32, 64, ... 1024 steps.
#pragma once
#include <cstdint>

namespace llmq {

// Guesses that were looked at, and right ones among them; old ones fade.
struct Acceptance {
  double right = 0, looked_at = 0;
  void record(std::int64_t guesses, std::int64_t accepted, double memory);
};

class Speculation {
 public:
  static constexpr std::int64_t kMostGuesses = 8;

  // `fixed` > 0: always so many guesses. guess_cost: bytes a guess reads over bytes that a pass of the model
  // reads.
  Speculation(std::int64_t fixed, double guess_cost, double free_rows)
      : fixed_(fixed), guess_cost_(guess_cost), free_rows_(free_rows) {}
  // Of a model whose pass reads `bytes` for `weights` numbers that every row is multiplied with.
  static double free_rows_of(double bytes, double weights);

  // Of one sequence.
  struct Sequence {
    Acceptance acceptance;
    // steps without guesses, and how many of them before it tries again
    std::int64_t silent = 0, patience = 32;
  };
  // Guesses for this sequence in a step that `sequences` of them share.
  std::int64_t guesses(Sequence& sequence, std::int64_t sequences) const;
  // What became of a round.
  void record(Sequence& sequence, std::int64_t guesses, std::int64_t accepted);
  // For a sequence of which nothing is known yet.
  std::int64_t usual_guesses(std::int64_t sequences) const;
  bool adapts() const { return fixed_ == 0; }

 private:
  double pass(double rows) const { return 1 + (rows - 1) / free_rows_; }
  double rate(double p, std::int64_t guesses, std::int64_t sequences) const;
  std::int64_t best(double p, std::int64_t sequences) const;

  std::int64_t fixed_;
  double guess_cost_, free_rows_;
  Acceptance engine_;
};

}  // namespace llmq
