// Causal attention of BF16 queries over pages of any kind by the matrix units, decoding and prefill alike, in two kernels:
//
//   SplitAttention  over the keys of one split (positions [512 s, 512 s + 512)), tile after tile of 64 keys:
//                   S = Q K^T scale;  m' = max(m, max S);  P = exp(S - m');  l = l exp(m - m') + sum P;  O = O exp(m - m') + P V
//   MergeSplits     M = max m_s;  out = sum_s exp(m_s - M) O_s / sum_s exp(m_s - M) l_s, splits rising
//
// Q, K, P and V are BF16 (pages of another type are rounded to it), everything else FP32; l sums the unrounded P. Splits and tiles lie at absolute positions, and a tile that a row
// cannot see changes nothing of it: a row's bits depend neither on its batch, nor on whether its sequence is decoded or prefilled.
//
// A block of SplitAttention takes 16 (token, head) pairs of one sequence and KV head, tokens first, for one split. Stages of a tile:
//   keys    to shared memory; zeros where no pair may look
//   scores  a warp each 16 keys
//   weigh   eight threads a pair; values to shared memory in the keys' place
//   mix     a warp each a quarter of the dimensions
// Cost: keys and values are read once per 16 pairs and split.
#pragma once
#include "kernels/cuda/kv_pages.h"

namespace llmq::cuda {

constexpr int kSplitKeys = 512, kPairs = 16, kTileKeys = 64;

// Rows of a batch that are consecutive tokens of a sequence, from the pair `first_pair` = token * group + head on.
struct AttentionTile {
  int32_t first_row = 0, rows = 0, first_pair = 0, unused = 0;  // every byte is a number's: lists of tiles are compared
  int64_t context = 0;      // the position of first_row
  int64_t first_block = 0;  // where in `tables` the sequence's blocks begin
};

struct TileAttentionArguments {
  const float* q = nullptr;  // [rows, heads, head_dim]
  KvStore keys, values;
  BFloat16* out = nullptr;  // [rows, heads * head_dim]
  const AttentionTile* tiles = nullptr;
  int64_t tile_count = 0;
  const int32_t* tables = nullptr;
  const int64_t* positions = nullptr;  // [rows]
  int64_t rows = 0;
  int heads = 0, head_dim = 0;
  float scale = 0;
  int64_t window = 0;  // 0: none
  int splits = 1;      // enough for the greatest position
  // Scratch: O [rows, heads, splits, head_dim], then m and l [rows, heads, splits] each.
  float* mixed = nullptr;
  float* greatest = nullptr;
  float* sum = nullptr;

  LLMQ_BLOCK int64_t first_visible(int64_t position) const {
    return window > 0 && position - window + 1 > 0 ? position - window + 1 : 0;
  }
};

template <int kDim>
struct SplitAttention {
  static_assert(kDim % 64 == 0);
  using Arguments = TileAttentionArguments;
  static constexpr int kThreads = 128, kWords = kDim / 2, kStride = kWords + 4, kScoreStride = kTileKeys + 4, kShareStride = kTileKeys / 2 + 4;
  static constexpr int kProducts = kDim / 4 / 8;  // of a warp's dimensions, 8 at a time

  struct Shared {
    Array<uint32_t, kPairs * kStride> q;
    Array<uint32_t, kTileKeys * kStride> page;  // keys, then values
    Array<float, kPairs * kScoreStride> scores;
    Array<uint32_t, kPairs * kShareStride> shares;
    Array<float, kPairs> decay;
  };
  struct Registers {
    Sums mixed[kProducts];
    Sums scores[2];
    FragmentA a;
    FragmentB b[2];
    float greatest, sum, tile_greatest, other;  // of the thread's pair; sum: of its own keys
  };
  using Threads = PerThread<Registers, kThreads>;

  // Where a block is: its tile of pairs, and the positions that some pair of it sees in this split.
  struct Place {
    AttentionTile tile;
    int group, kv_head, split;
    int64_t first, last;
  };

  static Grid grid(const Arguments& a) { return {a.tile_count, a.keys.kv_heads, a.splits}; }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const Place place = place_of(block, a);
    if (place.first > place.last) return;
    Threads threads;
    block.each([&](int t) {
      start(threads[t]);
      fetch_queries(a, place, shared, t);
    });
    for (int64_t tile = place.first / kTileKeys * kTileKeys; tile <= place.last; tile += kTileKeys) {
      block.each([&](int t) { fetch_page(a, a.keys, place, shared, t, tile); });
      arrive(block);
      score(block, a, place, shared, threads, tile);
      block.barrier();
      block.each([&](int t) { fetch_page(a, a.values, place, shared, t, tile); });
      weigh(block, shared, threads);
      arrive(block);
      mix(block, shared, threads);
      block.barrier();
    }
    finish(block, a, place, threads);
  }

 private:
  static LLMQ_BLOCK Place place_of(const Block<kThreads>& block, const Arguments& a) {
    Place p{a.tiles[block.x], a.heads / a.keys.kv_heads, block.y, block.z, 0, 0};
    const int64_t from = p.tile.first_pair / p.group, pairs = int64_t{p.tile.rows} * p.group;
    const int64_t end = p.tile.first_pair + kPairs < pairs ? p.tile.first_pair + kPairs : pairs;
    p.last = p.tile.context + (end - 1) / p.group;
    p.first = a.first_visible(p.tile.context + from);
    const int64_t split_first = int64_t{p.split} * kSplitKeys, split_last = split_first + kSplitKeys - 1;
    p.first = p.first > split_first ? p.first : split_first;
    p.last = p.last < split_last ? p.last : split_last;
    return p;
  }

  // The token of a pair, relative to first_row; at least rows where there is no such pair.
  static LLMQ_BLOCK int64_t token_of(const Place& p, int pair) { return (p.tile.first_pair + pair) / p.group; }
  static LLMQ_BLOCK int64_t head_of(const Place& p, int pair) { return p.kv_head * p.group + (p.tile.first_pair + pair) % p.group; }

  static LLMQ_BLOCK void start(Registers& r) {
    LLMQ_UNROLL
    for (int n = 0; n < kProducts; ++n) LLMQ_UNROLL
      for (int e = 0; e < 4; ++e) r.mixed[n].v[e] = 0;
    r.greatest = -INFINITY;
    r.sum = 0;
  }

  static LLMQ_BLOCK void arrive(const Block<kThreads>& block) {
    block.commit_copies();
    block.template wait_copies<0>();
    block.barrier();
  }

  static LLMQ_BLOCK void fetch_queries(const Arguments& a, const Place& p, Shared& shared, int t) {
    for (int i = t; i < kPairs * kWords; i += kThreads) {
      const int pair = i / kWords, d = i % kWords * 2;
      const int64_t token = token_of(p, pair);
      const float* const q = a.q + ((p.tile.first_row + token) * a.heads + head_of(p, pair)) * a.head_dim;
      const bool present = token < p.tile.rows;
      shared.q.set(t, pair * kStride + i % kWords,
                   word_of(to_bfloat16(present && d < a.head_dim ? q[d] : 0.0f), to_bfloat16(present && d + 1 < a.head_dim ? q[d + 1] : 0.0f)));
    }
  }

  // The tile's keys or values, eight numbers at a time; copied as they are where heads of BF16 are multiples of that.
  static LLMQ_BLOCK void fetch_page(const Arguments& a, const KvStore& pages, const Place& p, Shared& shared, int t, int64_t tile) {
    for (int i = t; i < kTileKeys * kWords / 4; i += kThreads) {
      const int key = i / (kWords / 4), word = i % (kWords / 4) * 4, to = key * kStride + word;
      const int64_t position = tile + key;
      const bool seen = position >= p.first && position <= p.last;
      const int64_t block = seen ? a.tables[p.tile.first_block + position / pages.block_size] : 0;
      const int64_t from = pages.place(block * pages.block_size + position % pages.block_size, p.kv_head);
      if (!pages.packed && pages.element == Element::kBF16 && a.head_dim % 8 == 0) {
        const bool present = seen && 2 * word < a.head_dim;
        shared.page.copy_async(t, to, static_cast<const BFloat16*>(pages.first) + (present ? from + 2 * word : 0), present);
      } else {
        fetch_words(pages, from, seen, shared, t, to, 2 * word);
      }
    }
  }
  static LLMQ_BLOCK void fetch_words(const KvStore& pages, int64_t from, bool seen, Shared& shared, int t, int to, int d) {
    float numbers[8] = {};
    if (seen && pages.packed)
      kv_load_part<8>(pages.row, numbers, pages.bytes_at(from), d, pages.scale);
    else if (seen)
      for (int j = 0; j < 8 && d + j < pages.row.n; ++j) numbers[j] = pages.get(from, d + j);
    LLMQ_UNROLL
    for (int w = 0; w < 4; ++w) shared.page.set(t, to + w, word_of(to_bfloat16(numbers[2 * w]), to_bfloat16(numbers[2 * w + 1])));
  }

  static LLMQ_BLOCK void score(const Block<kThreads>& block, const Arguments& a, const Place& p, Shared& shared, Threads& threads, int64_t tile) {
    block.each([&](int t) {
      LLMQ_UNROLL
      for (int n = 0; n < 2; ++n) LLMQ_UNROLL
        for (int e = 0; e < 4; ++e) threads[t].scores[n].v[e] = 0;
    });
    LLMQ_UNROLL
    for (int step = 0; step < kDim / 16; ++step) {
      block.each([&](int t) {
        Registers& r = threads[t];
        const int lane = t % kWarp, at = step * 8 + lane % 4;
        LLMQ_UNROLL
        for (int w = 0; w < 4; ++w) r.a.v[w] = shared.q.get(t, (lane / 4 + w % 2 * 8) * kStride + at + w / 2 * 4);
        LLMQ_UNROLL
        for (int n = 0; n < 2; ++n) LLMQ_UNROLL
          for (int w = 0; w < 2; ++w) r.b[n].v[w] = shared.page.get(t, (t / kWarp * 16 + n * 8 + lane / 4) * kStride + at + w * 4);
      });
      LLMQ_UNROLL
      for (int n = 0; n < 2; ++n)
        block.mma_bf16([&](int t) -> Sums& { return threads[t].scores[n]; }, [&](int t) -> const FragmentA& { return threads[t].a; },
                       [&](int t) -> const FragmentB& { return threads[t].b[n]; });
    }
    block.each([&](int t) {
      const int lane = t % kWarp;
      LLMQ_UNROLL
      for (int n = 0; n < 2; ++n) LLMQ_UNROLL
        for (int e = 0; e < 4; ++e) {
          const int pair = lane / 4 + e / 2 * 8, key = t / kWarp * 16 + n * 8 + lane % 4 * 2 + e % 2;
          const int64_t position = p.tile.context + token_of(p, pair);
          const bool visible = tile + key <= position && tile + key >= a.first_visible(position) && tile + key >= p.first && tile + key <= p.last;
          shared.scores.set(t, pair * kScoreStride + key, visible ? threads[t].scores[n].v[e] * a.scale : -INFINITY);
        }
    });
  }

  // Thread t has pair t / 8 and of its keys those at t % 8 * 8 + 0 .. 7.
  static LLMQ_BLOCK void weigh(const Block<kThreads>& block, Shared& shared, Threads& threads) {
    block.each([&](int t) {
      float greatest = threads[t].greatest;
      for (int i = 0; i < 8; ++i) greatest = fmaxf(greatest, shared.scores.get(t, t / 8 * kScoreStride + t % 8 * 8 + i));
      threads[t].tile_greatest = greatest;
    });
    for (int mask = 1; mask < 8; mask *= 2) {
      block.exchange([&](int t) -> float& { return threads[t].other; }, [&](int t) { return threads[t].tile_greatest; }, mask);
      block.each([&](int t) { threads[t].tile_greatest = fmaxf(threads[t].tile_greatest, threads[t].other); });
    }
    block.each([&](int t) {
      Registers& r = threads[t];
      const int pair = t / 8, first = t % 8 * 8;
      // A pair that has seen no key yet keeps nothing and adds nothing.
      const bool blind = r.tile_greatest == -INFINITY;
      const float decay = blind ? 1.0f : expf(r.greatest - r.tile_greatest);
      float sum = r.sum * decay;
      for (int i = 0; i < 8; i += 2) {
        float share[2];
        for (int j = 0; j < 2; ++j) {
          share[j] = blind ? 0.0f : expf(shared.scores.get(t, pair * kScoreStride + first + i + j) - r.tile_greatest);
          sum += share[j];
        }
        shared.shares.set(t, pair * kShareStride + (first + i) / 2, word_of(to_bfloat16(share[0]), to_bfloat16(share[1])));
      }
      r.sum = sum;
      r.greatest = r.tile_greatest;
      if (t % 8 == 0) shared.decay.set(t, pair, decay);
    });
  }

  static LLMQ_BLOCK void mix(const Block<kThreads>& block, const Shared& shared, Threads& threads) {
    block.each([&](int t) {
      LLMQ_UNROLL
      for (int e = 0; e < 4; ++e) {
        const float decay = shared.decay.get(t, t % kWarp / 4 + e / 2 * 8);
        LLMQ_UNROLL
        for (int n = 0; n < kProducts; ++n) threads[t].mixed[n].v[e] *= decay;
      }
    });
    LLMQ_UNROLL
    for (int step = 0; step < kTileKeys / 16; ++step) {
      block.each([&](int t) {
        const int lane = t % kWarp;
        LLMQ_UNROLL
        for (int w = 0; w < 4; ++w) threads[t].a.v[w] = shared.shares.get(t, (lane / 4 + w % 2 * 8) * kShareStride + step * 8 + lane % 4 + w / 2 * 4);
      });
      LLMQ_UNROLL
      for (int n = 0; n < kProducts; ++n) {
        block.each([&](int t) {
          const int lane = t % kWarp, dim = t / kWarp * (kDim / 4) + n * 8 + lane / 4;
          LLMQ_UNROLL
          for (int w = 0; w < 2; ++w) {
            const int key = step * 16 + lane % 4 * 2 + w * 8;
            threads[t].b[0].v[w] = value_at(shared, t, key, dim) | value_at(shared, t, key + 1, dim) << 16;
          }
        });
        block.mma_bf16([&](int t) -> Sums& { return threads[t].mixed[n]; }, [&](int t) -> const FragmentA& { return threads[t].a; },
                       [&](int t) -> const FragmentB& { return threads[t].b[0]; });
      }
    }
  }
  static LLMQ_BLOCK uint32_t value_at(const Shared& shared, int t, int key, int dim) {
    return shared.page.get(t, key * kStride + dim / 2) >> (dim % 2 * 16) & 0xffffu;
  }

  static LLMQ_BLOCK void finish(const Block<kThreads>& block, const Arguments& a, const Place& p, Threads& threads) {
    for (int mask = 1; mask < 8; mask *= 2) {
      block.exchange([&](int t) -> float& { return threads[t].other; }, [&](int t) { return threads[t].sum; }, mask);
      block.each([&](int t) { threads[t].sum += threads[t].other; });
    }
    block.each([&](int t) {
      const Registers& r = threads[t];
      if (t % 8 == 0 && token_of(p, t / 8) < p.tile.rows) {
        const int64_t at = part_of(a, p, t / 8);
        a.greatest[at] = r.greatest;
        a.sum[at] = r.sum;
      }
      LLMQ_UNROLL
      for (int n = 0; n < kProducts; ++n) LLMQ_UNROLL
        for (int e = 0; e < 4; ++e) {
          const int pair = t % kWarp / 4 + e / 2 * 8, dim = t / kWarp * (kDim / 4) + n * 8 + t % 4 * 2 + e % 2;
          if (token_of(p, pair) < p.tile.rows && dim < a.head_dim) a.mixed[part_of(a, p, pair) * a.head_dim + dim] = r.mixed[n].v[e];
        }
    });
  }
  static LLMQ_BLOCK int64_t part_of(const Arguments& a, const Place& p, int pair) {
    return ((p.tile.first_row + token_of(p, pair)) * a.heads + head_of(p, pair)) * a.splits + p.split;
  }
};

struct MergeSplits {
  using Arguments = TileAttentionArguments;
  static constexpr int kThreads = 64;
  struct Shared {};
  static Grid grid(const Arguments& a) { return {a.rows, a.heads}; }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared&) {
    const int64_t position = a.positions[block.x], part = (int64_t{block.x} * a.heads + block.y) * a.splits;
    const int64_t first = part + a.first_visible(position) / kSplitKeys, last = part + position / kSplitKeys;
    block.each([&](int t) {
      float greatest = -INFINITY, sum = 0;
      for (int64_t s = first; s <= last; ++s) greatest = fmaxf(greatest, a.greatest[s]);
      for (int64_t s = first; s <= last; ++s) sum = fmaf(expf(a.greatest[s] - greatest), a.sum[s], sum);
      for (int d = t; d < a.head_dim; d += kThreads) {
        float mixed = 0;
        for (int64_t s = first; s <= last; ++s) mixed = fmaf(expf(a.greatest[s] - greatest), a.mixed[s * a.head_dim + d], mixed);
        a.out[(int64_t{block.x} * a.heads + block.y) * a.head_dim + d] = to_bfloat16(mixed / sum);
      }
    });
  }
};

constexpr int kMostTileDim = 256;

// Both kernels; start.operator()<Kernel>(arguments) starts one, and gives 0 where that was accepted.
template <class Start>
int start_tile_attention(const TileAttentionArguments& a, const Start& start) {
  const int split = a.head_dim <= 64    ? start.template operator()<SplitAttention<64>>(a)
                    : a.head_dim <= 128 ? start.template operator()<SplitAttention<128>>(a)
                                        : start.template operator()<SplitAttention<kMostTileDim>>(a);
  return split != 0 ? split : start.template operator()<MergeSplits>(a);
}

}  // namespace llmq::cuda
