// The evaluation loop: prefill a window, then logits, scores and divergence a tile of rows at a time.
//
// Cost: one forward per model and window; memory: one tile of logits per model (at most kTileBytes, on a
// device its scratch memory) where two are compared, tiles of the vocabulary otherwise
// (Backend::score_products), never a window of them.
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

// Everything accumulated over the scored tokens, in token order.
struct Tally {
  Moments nll, reference_nll, kl;
  std::vector<double> every_kl;
  std::int64_t agreements = 0;
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

void score_window(Engine& engine, Engine* against, const Window& window, Tally& tally) {
  const HiddenStates states = prefill(engine, window);
  const HiddenStates reference = against ? prefill(*against, window) : HiddenStates{};
  const std::int64_t bytes =
      std::max(kTileBytes, static_cast<std::int64_t>(engine.backend().scratch_bytes()));
  const std::int64_t tile =
      against ? std::clamp<std::int64_t>(bytes / (engine.spec().vocab_size * 4), 16, 256) : kScoredRows;
  const auto end =
      static_cast<std::int64_t>(window.tokens.size()) - 1;  // the last row predicts nothing that is known
  std::vector<RowScore> scores, reference_scores;
  std::vector<double> kl;
  for (std::int64_t row = window.first_scored - 1; row < end; row += tile) {
    const std::int64_t rows = std::min(tile, end - row);
    const auto count = static_cast<std::size_t>(rows);
    const std::span targets(window.tokens.data() + row + 1, count);
    scores.resize(count);
    TensorView logits;
    if (against) {
      logits = engine.logits(states.rows.row_slice(row, rows));
      engine.backend().score_rows(logits, targets, scores);
    } else {
      engine.score(states.rows.row_slice(row, rows), targets, scores);
    }
    for (const RowScore& score : scores) tally.nll.add(-score.log_prob);
    if (!against) continue;
    reference_scores.resize(count);
    kl.resize(count);
    const TensorView reference_logits = against->logits(reference.rows.row_slice(row, rows));
    against->backend().score_rows(reference_logits, targets, reference_scores);
    engine.backend().divergence(reference_logits, logits, kl);
    for (std::size_t i = 0; i < count; ++i) {
      tally.reference_nll.add(-reference_scores[i].log_prob);
      tally.kl.add(kl[i]);
      tally.every_kl.push_back(kl[i]);
      tally.agreements += scores[i].argmax == reference_scores[i].argmax;
    }
  }
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
  d.delta_ppl = ppl - d.reference_ppl;
  return d;
}

}  // namespace

PerplexityResult evaluate_perplexity(Engine& engine, Engine* against, std::span<const Window> windows,
                                     const std::function<void(std::int64_t done, double ppl)>& on_window) {
  if (against && against->spec().vocab_size != engine.spec().vocab_size)
    fail(ErrorKind::kBadInput, {fmt::format("the models' vocabularies differ: {} and {} tokens",
                                            engine.spec().vocab_size, against->spec().vocab_size),
                                {},
                                "--against",
                                "compare a model with the one it was made from"});
  const auto start = std::chrono::steady_clock::now();
  PerplexityResult result;
  Tally tally;
  for (const Window& window : windows) {
    score_window(engine, against, window, tally);
    ++result.windows;
    result.evaluated_tokens += static_cast<std::int64_t>(window.tokens.size());
    if (on_window) on_window(result.windows, std::exp(tally.nll.mean()));
  }
  result.scored_tokens = tally.nll.count;
  result.mean_nll = tally.nll.mean();
  result.ppl = std::exp(result.mean_nll);
  result.ppl_stderr = result.ppl * tally.nll.standard_error();
  if (against) result.against = summarize(tally, result.ppl);
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace llmq
