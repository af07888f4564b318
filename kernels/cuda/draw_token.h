// A token for each row of logits, by the race of kernels/common/token_race.h: greedy where the temperature is
// 0.
//
// A block of 256 threads takes a row: the greatest logit, the lowest index among equals (NaN is never
// greater, a row of nothing else gives 0); then the earliest arrival, the greatest logit's before others,
// lower indices first. Cost: the row is read twice.
#pragma once
#include "kernels/common/token_race.h"
#include "kernels/cuda/rows.h"

namespace llmq::cuda {

struct Arrival {
  double time;
  int32_t token;
};

struct DrawToken {
  struct Arguments {
    int64_t rows = 0, width = 0;
    Rows logits;
    const TokenDraw* draws = nullptr;
    int32_t* tokens = nullptr;
  };
  struct Shared {
    RowValues<Logit> greatest;
    RowValues<Arrival> first;
  };
  static constexpr int kThreads = kRowThreads;
  static constexpr int32_t kNone = INT32_MAX;
  static Grid grid(const Arguments& a) { return {a.rows}; }

  static LLMQ_BLOCK void run(RowBlock& block, const Arguments& a, Shared& shared) {
    const int64_t row = block.x;
    const TokenDraw draw = a.draws[row];
    find_greatest(block, a, shared, row);
    if (draw.temperature > 0) {
      race(block, a, shared, row, draw);
    } else {
      block.each([&](int thread) {
        if (thread == 0) a.tokens[row] = favourite(shared, thread);
      });
    }
  }

 private:
  static LLMQ_BLOCK int32_t favourite(const Shared& shared, int thread) {
    const int32_t at = shared.greatest.get(thread, 0).at;
    return at == kNone ? 0 : at;
  }

  static LLMQ_BLOCK void find_greatest(RowBlock& block, const Arguments& a, Shared& shared, int64_t row) {
    block.each([&](int thread) {
      Logit best{-INFINITY, kNone};
      for (int64_t c = thread; c < a.width; c += kThreads)
        best = greater(best, {a.logits.get(row, c), static_cast<int32_t>(c)});
      shared.greatest.set(thread, thread, best);
    });
    block.barrier();
    fold_halves(block, shared.greatest, [](Logit x, Logit y) { return greater(x, y); });
  }

  static LLMQ_BLOCK Arrival earlier(Arrival a, Arrival b) {
    return b.time < a.time || (b.time == a.time && b.token < a.token) ? b : a;
  }

  // -log u >= 1 - u and exp(x) >= 1 + x + x^2 / 2 for x >= 0: most need neither function.
  static LLMQ_BLOCK void race(RowBlock& block, const Arguments& a, Shared& shared, int64_t row,
                              const TokenDraw& draw) {
    block.each([&](int thread) {
      const int32_t known = favourite(shared, thread);
      const auto greatest = static_cast<double>(a.logits.get(row, known));
      Arrival first{-log(race_uniform(draw.start, known)), -1};  // -1: the favourite, before all others
      for (int64_t c = thread; c < a.width; c += kThreads) {
        const double exponent = (static_cast<double>(a.logits.get(row, c)) - greatest) / draw.temperature;
        const auto token = static_cast<int32_t>(c);
        if (token == known || !(exponent >= draw.least)) continue;
        const double x = -exponent, u = race_uniform(draw.start, token);
        if ((1 - u) * (1 + x + 0.5 * x * x) < first.time) first = earlier(first, {-log(u) * exp(x), token});
      }
      shared.first.set(thread, thread, first);
    });
    block.barrier();
    fold_halves(block, shared.first, [](Arrival x, Arrival y) { return earlier(x, y); });
    block.each([&](int thread) {
      if (thread != 0) return;
      const int32_t token = shared.first.get(thread, 0).token;
      a.tokens[row] = token < 0 ? favourite(shared, thread) : token;
    });
  }
};

}  // namespace llmq::cuda
