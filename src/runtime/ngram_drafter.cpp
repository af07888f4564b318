// Guesses by copying: what followed where the last tokens stood before.
#include <algorithm>

#include "runtime/drafter.h"

namespace llmq {
namespace {

constexpr std::size_t kLeast = 2, kMost = 4;  // tokens that must be the same

// Tokens, from `end` backwards, that are those at the end of the sequence.
std::size_t common_end(std::span<const std::int32_t> tokens, std::size_t end) {
  std::size_t same = 0;
  while (same < kMost && same < end && tokens[end - 1 - same] == tokens[tokens.size() - 1 - same]) ++same;
  return same;
}

// Where the guess begins: behind the longest of such places, the latest of equals; 0 for none.
std::size_t place_to_copy(std::span<const std::int32_t> tokens) {
  std::size_t place = 0, longest = kLeast - 1;
  for (std::size_t end = tokens.size() - 1; end >= kLeast && longest < kMost; --end)
    if (const std::size_t same = common_end(tokens, end); same > longest) {
      longest = same;
      place = end;
    }
  return place;
}

class NgramDrafter : public Drafter {
 public:
  std::string name() const override { return "ngram"; }
  double bytes_per_guess() const override { return 0; }
  void forget(std::uint64_t) override {}
  void propose(std::span<DraftJob> jobs) override {
    for (DraftJob& job : jobs) {
      job.guesses.clear();
      if (job.tokens.size() <= kLeast) continue;
      const std::size_t place = place_to_copy(job.tokens);
      if (place == 0) continue;
      // A copy that reaches the end goes on with itself: a period is continued.
      for (std::size_t i = place; static_cast<std::int64_t>(job.guesses.size()) < job.most; ++i)
        job.guesses.push_back(i < job.tokens.size() ? job.tokens[i] : job.guesses[i - job.tokens.size()]);
    }
  }
};

}  // namespace

std::unique_ptr<Drafter> make_ngram_drafter() { return std::make_unique<NgramDrafter>(); }

}  // namespace llmq
