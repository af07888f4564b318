// Causal attention of one (row, head) by a block of 128 threads, over pages of any kind:
//
//   s_p = scale * q . k_p;  out = sum_p exp(s_p - max) v_p / sum_p exp(s_p - max),  p over the visible
//                           positions
//
// With a softcap s_p becomes cap tanh(s_p / cap). A sink is a key that is seen before all others: the maximum
// begins as its score and the sum as 1.
//
// Online softmax over tiles of 64 keys at absolute positions 0, 64, 128, ...: a row does not know its batch,
// nor which pages hold its past. Stages of a tile: scores (a thread each key, an FMA chain over the head),
// weights, mix (a thread up to five dimensions). The plain form, right on every device; the S x S matrix is
// nowhere.
#pragma once
#include "kernels/common/look_back.h"
#include "kernels/cuda/kv_pages.h"

namespace llmq::cuda {

constexpr int kMostHeadDim = 640;

// A score from q . k; cap 0: none.
LLMQ_BLOCK float scaled_score(float dot, float scale, float cap) {
  const float score = dot * scale;
  return cap > 0.0f ? cap * tanhf(score / cap) : score;
}

struct PlainAttention {
  static constexpr int kThreads = 128, kKeys = 64, kEach = kMostHeadDim / kThreads;
  struct Arguments {
    int64_t rows = 0;
    int heads = 0, head_dim = 0;  // head_dim <= kMostHeadDim
    float scale = 0, softcap = 0;
    LookBack look_back = {};
    const float* sinks = nullptr;  // [heads]; null: none
    Rows q, out;                   // q [rows * heads, head_dim], out [rows, heads * head_dim]
    KvStore keys, values;
    const int64_t* positions = nullptr;    // [rows] the absolute position of each
    const int64_t* first_block = nullptr;  // [rows] where in `tables` its sequence's blocks begin
    const int32_t* tables = nullptr;
    LLMQ_BLOCK int64_t slot(int64_t row, int64_t p) const {
      return int64_t{tables[first_block[row] + p / keys.block_size]} * keys.block_size + p % keys.block_size;
    }
  };
  struct Shared {
    Array<float, kMostHeadDim> q;
    Array<float, kKeys> scores, weights;
  };
  struct Running {
    float mixed[kEach];
    float greatest, sum;
  };
  static Grid grid(const Arguments& a) { return {a.rows, a.heads}; }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const int64_t row = block.x, position = a.positions[row];
    const int head = block.y, kv_head = head / (a.heads / a.keys.kv_heads);
    const int64_t first = a.look_back.first_seen(position);
    PerThread<Running, kThreads> running;
    block.each([&](int thread) {
      Running& own = running[thread];
      for (int d = thread; d < a.head_dim; d += kThreads)
        shared.q.set(thread, d, a.q.get(row * a.heads + head, d));
      LLMQ_UNROLL
      for (int i = 0; i < kEach; ++i) own.mixed[i] = 0;
      own.greatest = a.sinks != nullptr ? a.sinks[head] : -INFINITY;
      own.sum = a.sinks != nullptr ? 1.0f : 0.0f;
    });
    block.barrier();
    for (int64_t tile = first / kKeys * kKeys; tile <= position; tile += kKeys) {
      block.each([&](int thread) {  // scores
        if (thread >= kKeys) return;
        const int64_t p = tile + thread;
        float score = -INFINITY;
        if (p >= first && p <= position) {
          const int64_t at = a.keys.place(a.slot(row, p), kv_head);
          float dot = 0;
          for (int d = 0; d < a.head_dim; ++d) dot = fmaf(shared.q.get(thread, d), a.keys.get(at, d), dot);
          score = scaled_score(dot, a.scale, a.softcap);
        }
        shared.scores.set(thread, thread, score);
      });
      block.barrier();
      block.each([&](int thread) {  // weights
        Running& own = running[thread];
        float greatest = own.greatest;
        for (int j = 0; j < kKeys; ++j) greatest = fmaxf(greatest, shared.scores.get(thread, j));
        const float correction = expf(own.greatest - greatest);
        LLMQ_UNROLL
        for (int i = 0; i < kEach; ++i) own.mixed[i] *= correction;
        own.sum *= correction;
        own.greatest = greatest;
        if (thread < kKeys)
          shared.weights.set(thread, thread, expf(shared.scores.get(thread, thread) - greatest));
      });
      block.barrier();
      block.each([&](int thread) {  // mix
        Running& own = running[thread];
        const int64_t from = tile < first ? first - tile : 0,
                      to = tile + kKeys <= position ? kKeys : position - tile + 1;
        for (int64_t j = from; j < to; ++j) {
          const float weight = shared.weights.get(thread, static_cast<int>(j));
          const int64_t at = a.values.place(a.slot(row, tile + j), kv_head);
          own.sum += weight;
          LLMQ_UNROLL
          for (int i = 0; i < kEach; ++i) {
            const int d = thread + i * kThreads;
            if (d < a.head_dim) own.mixed[i] = fmaf(weight, a.values.get(at, d), own.mixed[i]);
          }
        }
      });
      block.barrier();
    }
    block.each([&](int thread) {
      LLMQ_UNROLL
      for (int i = 0; i < kEach; ++i) {
        const int d = thread + i * kThreads;
        if (d < a.head_dim)
          a.out.put(row, int64_t{head} * a.head_dim + d, running[thread].mixed[i] / running[thread].sum);
      }
    });
  }
};

}  // namespace llmq::cuda
