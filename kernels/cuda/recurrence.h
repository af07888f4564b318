// What rows of a sequence leave for those behind them in a state of fixed size: the causal convolution, whose
// channels have a thread each, and the gated delta rule, whose heads have a block each.
//
// Rows go one after another, so that a row's bits do not depend on where its sequence is cut. A thread has
// whole columns of a head's state, in the device's memory.
#pragma once
#include "kernels/cuda/rows.h"

namespace llmq::cuda {

struct CausalConv {
  int64_t elements = 0;  // channels
  Rows y, x, weight, before;
  int64_t taps = 0, rows = 0;
  LLMQ_BLOCK float at(int64_t t, int64_t c) const {
    return t < 0 ? before.get(taps - 1 + t, c) : x.get(t, c);
  }
  LLMQ_BLOCK void one(int64_t c) const {
    for (int64_t t = 0; t < rows; ++t) {
      float sum = 0;
      for (int64_t j = 0; j < taps; ++j) sum = fmaf(at(t - taps + 1 + j, c), weight.get(j, c), sum);
      y.put(t, c, activated(sum, Activation::kSilu));
    }
    for (int64_t j = 0; j < taps - 1; ++j) before.put(j, c, at(rows - taps + 1 + j, c));
  }
};

struct DeltaRule {
  struct Arguments {
    int64_t rows = 0, heads = 0, repeat = 1, key_dim = 0, value_dim = 0;
    Rows out, q, k, v, decay, share;
    const float *rate = nullptr, *shift = nullptr;
    float* state = nullptr;
    float scale = 0;  // of a query
  };
  struct Shared {
    RowValues<float> keys, queries;
  };
  static constexpr int kThreads = kRowThreads;
  static constexpr float kUnitEps = 1e-6f;
  static Grid grid(const Arguments& a) { return {a.heads}; }

  static LLMQ_BLOCK float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

  static LLMQ_BLOCK void run(RowBlock& block, const Arguments& a, Shared& shared) {
    const int64_t head = block.x, first = head / a.repeat * a.key_dim, value = head * a.value_dim;
    for (int64_t t = 0; t < a.rows; ++t) {
      const auto squares = [&](const Rows& x) {
        return [&x, t, first](int64_t c, float sum) {
          return fmaf(x.get(t, first + c), x.get(t, first + c), sum);
        };
      };
      sum_row(block, shared.keys, a.key_dim, squares(a.k));
      sum_row(block, shared.queries, a.key_dim, squares(a.q));
      block.each([&](int thread) {
        const float key_factor = 1.0f / sqrtf(shared.keys.get(thread, 0) + kUnitEps),
                    query_factor = a.scale / sqrtf(shared.queries.get(thread, 0) + kUnitEps);
        const float decay = expf(-expf(a.rate[head]) * softplus(a.decay.get(t, head) + a.shift[head])),
                    share = activated(a.share.get(t, head), Activation::kSigmoid);
        for (int64_t j = thread; j < a.value_dim; j += kThreads) {
          float* const column = a.state + value * a.key_dim + j;
          float known = 0, given = 0;
          for (int64_t c = 0; c < a.key_dim; ++c) {
            const float kept = column[c * a.value_dim] * decay;
            column[c * a.value_dim] = kept;
            known = fmaf(kept, a.k.get(t, first + c) * key_factor, known);
          }
          const float taken = share * (a.v.get(t, value + j) - known);
          for (int64_t c = 0; c < a.key_dim; ++c) {
            const float next = fmaf(a.k.get(t, first + c) * key_factor, taken, column[c * a.value_dim]);
            column[c * a.value_dim] = next;
            given = fmaf(next, a.q.get(t, first + c) * query_factor, given);
          }
          a.out.put(t, value + j, given);
        }
      });
      block.barrier();  // before the sums of the next row
    }
  }
};

}  // namespace llmq::cuda
