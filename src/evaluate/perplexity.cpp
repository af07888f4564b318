// The evaluation loop: prefill a window, then logits, scores and divergence a tile of rows at a time.
//
// Cost: one forward per model and window, the original's once for all that are held against it; memory: one
// tile of logits per model (at most kTileBytes, on a device its scratch memory) where models are compared,
// tiles of the vocabulary otherwise (Backend::score_products), never a window of them.
#include "evaluate/perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "base/seconds_since.h"

namespace llmq {
namespace {

constexpr std::int64_t kTileBytes = 16 << 20, kScoredRows = 1024;

struct Moments {
  double sum = 0, sum_of_squares = 0;
  std::int64_t count = 0;
  void add(double x) {
    sum += x;
    sum_of_squares += x * x;
    ++count;
  }
  double mean() const { return sum / static_cast<double>(count); }
  double standard_error() const {  // of the mean
    if (count < 2) return 0;
    const auto n = static_cast<double>(count);
    const double variance = std::max(0.0, (sum_of_squares - sum * sum / n) / (n - 1));
    return std::sqrt(variance / n);
  }
};

// What a model said of a token; all but the first are nothing where there is no original.
struct TokenScore {
  double nll = 0, reference_nll = 0, kl = 0;
  std::int64_t agrees = 0;
};
using TokenScores = std::vector<TokenScore>;  // in token order

// Everything accumulated over the scored tokens, in token order.
struct Tally {
  Moments nll, reference_nll, kl;
  std::vector<double> every_kl;
  std::int64_t agreements = 0;

  void add(std::span<const TokenScore> scores, bool compared) {
    for (const TokenScore& score : scores) {
      nll.add(score.nll);
      if (!compared) continue;
      reference_nll.add(score.reference_nll);
      kl.add(score.kl);
      every_kl.push_back(score.kl);
      agreements += score.agrees;
    }
  }
};

struct HiddenStates {
  Buffer buffer;
  TensorView rows;  // [window, hidden_size]
};

HiddenStates prefill(Engine& engine, const Window& window) {
  KvSequence sequence(engine.cache());
  HiddenStates states{engine.forward(sequence, window.tokens), {}};
  const auto rows = static_cast<std::int64_t>(window.tokens.size());
  states.rows =
      states.buffer.view(activation_dtype(engine.options().compute), {rows, engine.spec().hidden_size});
  return states;
}

// run(row, rows, targets) for the rows of a window whose next token is scored, at most `tile` at a time. The
// last row predicts nothing that is known.
template <class Run>
void each_tile(const Window& window, std::int64_t tile, const Run& run) {
  const auto end = static_cast<std::int64_t>(window.tokens.size()) - 1;
  for (std::int64_t row = window.first_scored - 1; row < end; row += tile) {
    const std::int64_t rows = std::min(tile, end - row);
    run(row, rows, std::span(window.tokens.data() + row + 1, static_cast<std::size_t>(rows)));
  }
}

void score_window(Engine& engine, const Window& window, TokenScores& found) {
  const HiddenStates states = prefill(engine, window);
  std::vector<RowScore> scores;
  each_tile(window, kScoredRows,
            [&](std::int64_t row, std::int64_t rows, std::span<const std::int32_t> targets) {
              scores.resize(targets.size());
              engine.score(states.rows.row_slice(row, rows), targets, scores);
              for (const RowScore& score : scores) found.push_back({-score.log_prob});
            });
}

void compare_window(std::span<Engine* const> engines, Engine& against, const Window& window,
                    std::span<TokenScores> found) {
  std::vector<HiddenStates> states;
  for (Engine* engine : engines) states.push_back(prefill(*engine, window));
  const HiddenStates reference = prefill(against, window);
  const std::int64_t bytes =
      std::max(kTileBytes, static_cast<std::int64_t>(engines.front()->backend().scratch_bytes()));
  const auto tile = std::clamp<std::int64_t>(bytes / (against.spec().vocab_size * 4), 16, 256);
  std::vector<RowScore> scores, reference_scores;
  std::vector<double> kl;
  each_tile(window, tile, [&](std::int64_t row, std::int64_t rows, std::span<const std::int32_t> targets) {
    scores.resize(targets.size());
    reference_scores.resize(targets.size());
    kl.resize(targets.size());
    const TensorView reference_logits = against.logits(reference.rows.row_slice(row, rows));
    against.backend().score_rows(reference_logits, targets, reference_scores);
    for (std::size_t e = 0; e < engines.size(); ++e) {
      const TensorView logits = engines[e]->logits(states[e].rows.row_slice(row, rows));
      engines[e]->backend().score_rows(logits, targets, scores);
      engines[e]->backend().divergence(reference_logits, logits, kl);
      for (std::size_t i = 0; i < targets.size(); ++i)
        found[e].push_back({-scores[i].log_prob, -reference_scores[i].log_prob, kl[i],
                            scores[i].argmax == reference_scores[i].argmax});
    }
  });
}

std::size_t scored_tokens(const Window& window) {
  return window.tokens.size() - static_cast<std::size_t>(window.first_scored);
}

// Tallies of all windows from what the ranks found in theirs: rank by rank, of each its windows in turn, of
// each the engines in turn.
std::vector<Tally> tally_of_ranks(const std::vector<RankBytes>& found, std::span<const Window> windows,
                                  std::size_t engines, bool compared) {
  std::vector<std::span<const TokenScore>> left;
  for (const RankBytes& bytes : found) {
    if (bytes.size() % sizeof(TokenScore) != 0)
      fail(ErrorKind::kInternal, "rank {} sent a piece of a score", left.size());
    left.emplace_back(reinterpret_cast<const TokenScore*>(bytes.data()), bytes.size() / sizeof(TokenScore));
  }
  std::vector<Tally> tallies(engines);
  for (std::size_t w = 0; w < windows.size(); ++w) {
    std::span<const TokenScore>& theirs = left[w % left.size()];
    const std::size_t scored = scored_tokens(windows[w]);
    if (theirs.size() < engines * scored)
      fail(ErrorKind::kInternal, "rank {} scored too few tokens", w % left.size());
    for (Tally& tally : tallies) {
      tally.add(theirs.first(scored), compared);
      theirs = theirs.subspan(scored);
    }
  }
  for (std::size_t rank = 0; rank < left.size(); ++rank)
    if (!left[rank].empty()) fail(ErrorKind::kInternal, "rank {} scored too many tokens", rank);
  return tallies;
}

Divergence summarize(Tally& tally, double ppl) {
  Divergence d;
  d.kl_mean = tally.kl.mean();
  d.kl_stderr = tally.kl.standard_error();
  std::sort(tally.every_kl.begin(), tally.every_kl.end());
  const auto last = static_cast<double>(tally.every_kl.size() - 1);
  d.kl_p99 = tally.every_kl[static_cast<std::size_t>(std::ceil(0.99 * last))];
  d.kl_max = tally.every_kl.back();
  d.top1_agreement = static_cast<double>(tally.agreements) / static_cast<double>(tally.kl.count);
  d.reference_ppl = std::exp(tally.reference_nll.mean());
  d.reference_ppl_stderr = d.reference_ppl * tally.reference_nll.standard_error();
  d.delta_ppl = ppl - d.reference_ppl;
  return d;
}

}  // namespace

std::uint64_t shared_score_bytes(const Window& window) { return scored_tokens(window) * sizeof(TokenScore); }

std::vector<PerplexityResult> evaluate_perplexities(
    std::span<Engine* const> engines, Engine* against, std::span<const Window> windows,
    const std::function<void(std::int64_t done, double ppl)>& on_window, Ranks* shared_by) {
  for (const Engine* engine : engines)
    if (against && against->spec().vocab_size != engine->spec().vocab_size)
      fail(ErrorKind::kBadInput, {fmt::format("the models' vocabularies differ: {} and {} tokens",
                                              engine->spec().vocab_size, against->spec().vocab_size),
                                  {},
                                  "--against",
                                  "compare a model with the one it was made from"});
  const auto start = std::chrono::steady_clock::now();
  OneRank alone;
  Ranks& ranks = shared_by == nullptr ? alone : *shared_by;
  const bool compared = against != nullptr, shared = ranks.size() > 1;
  const auto first = static_cast<std::size_t>(ranks.rank()), step = static_cast<std::size_t>(ranks.size());
  std::vector<Tally> tallies(engines.size());
  std::vector<TokenScores> found(engines.size());
  TokenScores mine;  // where they are rank 0's to add up
  std::int64_t done = 0;
  for (std::size_t w = first; w < windows.size(); w += step) {
    for (TokenScores& scores : found) scores.clear();
    if (against)
      compare_window(engines, *against, windows[w], found);
    else
      for (std::size_t e = 0; e < engines.size(); ++e) score_window(*engines[e], windows[w], found[e]);
    for (std::size_t e = 0; e < engines.size(); ++e) {
      tallies[e].add(found[e], compared);
      if (shared) mine.insert(mine.end(), found[e].begin(), found[e].end());
    }
    if (++done; on_window) on_window(done, std::exp(tallies.front().nll.mean()));
  }
  if (shared) {
    const std::vector<RankBytes> all = ranks.gather(0, std::as_bytes(std::span(mine)));
    if (ranks.rank() != 0) return {};
    tallies = tally_of_ranks(all, windows, engines.size(), compared);
  }
  std::vector<PerplexityResult> results;
  for (Tally& tally : tallies) {
    PerplexityResult& result = results.emplace_back();
    result.windows = static_cast<std::int64_t>(windows.size());
    for (const Window& window : windows)
      result.evaluated_tokens += static_cast<std::int64_t>(window.tokens.size());
    result.scored_tokens = tally.nll.count;
    result.mean_nll = tally.nll.mean();
    result.ppl = std::exp(result.mean_nll);
    result.ppl_stderr = result.ppl * tally.nll.standard_error();
    if (against) result.against = summarize(tally, result.ppl);
    result.seconds = seconds_since(start);
  }
  return results;
}

PerplexityResult evaluate_perplexity(Engine& engine, Engine* against, std::span<const Window> windows,
                                     const std::function<void(std::int64_t done, double ppl)>& on_window) {
  Engine* const one = &engine;
  return std::move(evaluate_perplexities(std::span(&one, 1), against, windows, on_window).front());
}

}  // namespace llmq
