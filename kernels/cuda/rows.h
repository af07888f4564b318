// Kernels that give each row a block of 256 threads: norms, scores of logits, divergence, the rows' part of a
// quadratic form.
//
// A sum over a row: thread t adds elements t, t + 256, ... in order, then 256 partial sums are folded by
// halves: one order for a width, whatever stands beside the row. FP32 in the norms, FP64 elsewhere.
#pragma once
#include "kernels/cuda/elementwise.h"

namespace llmq::cuda {

constexpr int kRowThreads = 256;
using RowBlock = Block<kRowThreads>;
template <class T>
using RowValues = Array<T, kRowThreads>;

// values[0] becomes the fold of all by halves: fold(i) = fold(i, i + half). Ends at a barrier, as it must
// begin after one.
template <class T, class Fold>
LLMQ_BLOCK void fold_halves(RowBlock& block, RowValues<T>& values, const Fold& fold) {
  for (int half = kRowThreads / 2; half > 0; half /= 2) {
    block.each([&](int thread) {
      if (thread < half)
        values.set(thread, thread, fold(values.get(thread, thread), values.get(thread, thread + half)));
    });
    block.barrier();
  }
}

// values[0] = the sum over c < width of term(c).
template <class T, class Term>
LLMQ_BLOCK void sum_row(RowBlock& block, RowValues<T>& values, int64_t width, const Term& term) {
  block.each([&](int thread) {
    T sum = 0;
    for (int64_t c = thread; c < width; c += kRowThreads) sum = term(c, sum);
    values.set(thread, thread, sum);
  });
  block.barrier();
  fold_halves(block, values, [](T a, T b) { return a + b; });
}

struct RmsNorm {
  struct Arguments {
    int64_t rows = 0, width = 0;
    Rows y, x;
    const float* gain = nullptr;
    float eps = 0;
  };
  struct Shared {
    RowValues<float> sums;
  };
  static constexpr int kThreads = kRowThreads;
  static Grid grid(const Arguments& a) { return {a.rows}; }
  static LLMQ_BLOCK void run(RowBlock& block, const Arguments& a, Shared& shared) {
    const int64_t row = block.x;
    sum_row(block, shared.sums, a.width,
            [&](int64_t c, float sum) { return fmaf(a.x.get(row, c), a.x.get(row, c), sum); });
    block.each([&](int thread) {
      const float root = sqrtf(shared.sums.get(thread, 0) / static_cast<float>(a.width) + a.eps);
      for (int64_t c = thread; c < a.width; c += kThreads)
        a.y.put(row, c, a.x.get(row, c) / root * a.gain[c]);
    });
  }
};

struct LayerNorm {
  struct Arguments {
    int64_t rows = 0, width = 0;
    Rows y, x;
    const float* gain = nullptr;
    const float* bias = nullptr;  // null: 0
    float eps = 0;
    int64_t gains = 1;  // rows of `gain`, which those of x have in turn
  };
  struct Shared {
    RowValues<float> sums, squares;
  };
  static constexpr int kThreads = kRowThreads;
  static Grid grid(const Arguments& a) { return {a.rows}; }
  static LLMQ_BLOCK void run(RowBlock& block, const Arguments& a, Shared& shared) {
    const int64_t row = block.x;
    const auto width = static_cast<float>(a.width);
    sum_row(block, shared.sums, a.width, [&](int64_t c, float sum) { return sum + a.x.get(row, c); });
    block.each([&](int thread) {
      const float mean = shared.sums.get(thread, 0) / width;
      float sum = 0;
      for (int64_t c = thread; c < a.width; c += kThreads) {
        const float difference = a.x.get(row, c) - mean;
        sum = fmaf(difference, difference, sum);
      }
      shared.squares.set(thread, thread, sum);
    });
    block.barrier();
    fold_halves(block, shared.squares, [](float x, float y) { return x + y; });
    const float* const gain = a.gain + row % a.gains * a.width;
    block.each([&](int thread) {
      const float mean = shared.sums.get(thread, 0) / width;
      const float root = sqrtf(shared.squares.get(thread, 0) / width + a.eps);
      for (int64_t c = thread; c < a.width; c += kThreads) {
        const float shift = a.bias == nullptr ? 0.0f : a.bias[c];
        a.y.put(row, c, fmaf((a.x.get(row, c) - mean) / root, gain[c], shift));
      }
    });
  }
};

// A logit and where it stands; the greater, of equals the first, wins.
struct Logit {
  float value;
  int32_t at;
};
LLMQ_BLOCK Logit greater(Logit a, Logit b) {
  return b.value > a.value || (b.value == a.value && b.at < a.at) ? b : a;
}

// greatest[0] and sums[0] = sum exp(logit - greatest) of one row.
struct LogitSums {
  RowValues<Logit> greatest;
  RowValues<double> sums;
};

LLMQ_BLOCK void sum_logits(RowBlock& block, LogitSums& sums, const Rows& logits, int64_t row, int64_t width) {
  block.each([&](int thread) {
    Logit best{-INFINITY, INT32_MAX};
    for (int64_t c = thread; c < width; c += kRowThreads) {
      const float value = logits.get(row, c);
      if (best.at == INT32_MAX || value > best.value) best = {value, static_cast<int32_t>(c)};
    }
    sums.greatest.set(thread, thread, best);
  });
  block.barrier();
  fold_halves(block, sums.greatest, [](Logit a, Logit b) { return greater(a, b); });
  block.each([&](int thread) {
    const auto greatest = static_cast<double>(sums.greatest.get(thread, 0).value);
    double sum = 0;
    for (int64_t c = thread; c < width; c += kRowThreads)
      sum += exp(static_cast<double>(logits.get(row, c)) - greatest);
    sums.sums.set(thread, thread, sum);
  });
  block.barrier();
  fold_halves(block, sums.sums, [](double a, double b) { return a + b; });
}

LLMQ_BLOCK double log_of(const LogitSums& sums, int thread) {
  return static_cast<double>(sums.greatest.get(thread, 0).value) + log(sums.sums.get(thread, 0));
}

struct ScoreRows {
  struct Arguments {
    int64_t rows = 0, width = 0;
    Rows logits;
    const int32_t* targets = nullptr;
    double* log_prob = nullptr;
    int32_t* argmax = nullptr;
  };
  using Shared = LogitSums;
  static constexpr int kThreads = kRowThreads;
  static Grid grid(const Arguments& a) { return {a.rows}; }
  static LLMQ_BLOCK void run(RowBlock& block, const Arguments& a, LogitSums& sums) {
    const int64_t row = block.x;
    sum_logits(block, sums, a.logits, row, a.width);
    block.each([&](int thread) {
      if (thread != 0) return;
      a.log_prob[row] = static_cast<double>(a.logits.get(row, a.targets[row])) - log_of(sums, thread);
      a.argmax[row] = sums.greatest.get(thread, 0).at;
    });
  }
};

// KL = sum_i s_i (p_i - q_i) - (log Z_p - log Z_q), s = softmax(p): both terms are exactly 0 for equal rows.
struct Divergence {
  struct Arguments {
    int64_t rows = 0, width = 0;
    Rows p, q;
    double* kl = nullptr;
  };
  struct Shared {
    LogitSums p, q;
    RowValues<double> weighted;
  };
  static constexpr int kThreads = kRowThreads;
  static Grid grid(const Arguments& a) { return {a.rows}; }
  static LLMQ_BLOCK void run(RowBlock& block, const Arguments& a, Shared& shared) {
    const int64_t row = block.x;
    sum_logits(block, shared.p, a.p, row, a.width);
    sum_logits(block, shared.q, a.q, row, a.width);
    block.each([&](int thread) {
      const auto greatest = static_cast<double>(shared.p.greatest.get(thread, 0).value);
      double sum = 0;
      for (int64_t c = thread; c < a.width; c += kThreads) {
        const auto p = static_cast<double>(a.p.get(row, c)), q = static_cast<double>(a.q.get(row, c));
        sum += exp(p - greatest) * (p - q);
      }
      shared.weighted.set(thread, thread, sum);
    });
    block.barrier();
    fold_halves(block, shared.weighted, [](double x, double y) { return x + y; });
    block.each([&](int thread) {
      if (thread == 0)
        a.kl[row] = shared.weighted.get(thread, 0) / shared.p.sums.get(thread, 0) -
                    (log_of(shared.p, thread) - log_of(shared.q, thread));
    });
  }
};

// loss[r] = sum_k d[r, k] t[r, k], t = d G by product.h: products of FP32 numbers summed in FP64.
struct RowDots {
  struct Arguments {
    int64_t rows = 0, width = 0;
    Rows d, t;
    double* loss = nullptr;
  };
  struct Shared {
    RowValues<double> sums;
  };
  static constexpr int kThreads = kRowThreads;
  static Grid grid(const Arguments& a) { return {a.rows}; }
  static LLMQ_BLOCK void run(RowBlock& block, const Arguments& a, Shared& shared) {
    const int64_t row = block.x;
    sum_row(block, shared.sums, a.width, [&](int64_t c, double sum) {
      return sum + static_cast<double>(a.d.get(row, c)) * static_cast<double>(a.t.get(row, c));
    });
    block.each([&](int thread) {
      if (thread == 0) a.loss[row] = shared.sums.get(thread, 0);
    });
  }
};

}  // namespace llmq::cuda
