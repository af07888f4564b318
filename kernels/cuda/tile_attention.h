// Causal attention of BF16 queries over pages of any kind by the matrix units, decoding and prefill alike, in
// two kernels:
//
//   SplitAttention  over the keys of one split (positions [512 s, 512 s + 512)), tile after tile of 64 keys:
//                   S = Q K^T scale;  m' = max(m, max S);  P = exp(S - m');  l = l exp(m - m') + sum P;  O =
//                                     O exp(m - m') + P V
//   MergeSplits     M = max m_s;  out = sum_s exp(m_s - M) O_s / sum_s exp(m_s - M) l_s, splits rising
//
// With a softcap S = cap tanh(Q K^T scale / cap). With sinks, M is at least the head's sink, and exp(sink -
// M) is added to the divisor first.
//
// Q, K, P and V are BF16 (pages of another type are rounded to it), everything else FP32; l sums the
// unrounded P. Splits and tiles lie at absolute positions, and a tile that a row cannot see changes nothing
// of it: a row's bits depend neither on its batch, nor on whether its sequence is decoded or prefilled, nor
// on the shape of a block.
//
// A block of SplitAttention takes 16 or 64 (token, head) pairs of one sequence and KV head, tokens first, for
// one split. It looks up the split's pages once. Keys and values of tiles go through a ring in shared memory,
// keys of tile i as its item 2 i, values as 2 i + 1; the next kSlots - 1 items are on their way while one is
// used. Stages of a tile:
//   score  a warp each 16 keys of its group's pairs
//   weigh  eight threads a pair
//   mix    a warp each a quarter of the dimensions
// Cost: keys and values are read once per block.
#pragma once
#include "kernels/cuda/attention.h"

namespace llmq::cuda {

constexpr int kSplitKeys = 512, kPairs = 16, kWidePairs = 64, kTileKeys = 64;

// Rows of a batch that are consecutive tokens of a sequence, from the pair `first_pair` = token * group +
// head on.
struct AttentionTile {
  // every byte is a number's: lists of tiles are compared
  int32_t first_row = 0, rows = 0, first_pair = 0, unused = 0;
  int64_t context = 0;      // the position of first_row
  int64_t first_block = 0;  // where in `tables` the sequence's blocks begin
};

struct TileAttentionArguments {
  const float* q = nullptr;  // [rows, heads, head_dim]
  KvStore keys, values;
  BFloat16* out = nullptr;  // [rows, heads * head_dim]
  const AttentionTile* tiles = nullptr;
  int64_t wide_count = 0, tile_count = 0;  // tiles of kWidePairs, then of kPairs; of both
  const int32_t* tables = nullptr;
  const int64_t* positions = nullptr;  // [rows]
  int64_t rows = 0;
  int heads = 0, head_dim = 0;
  float scale = 0, softcap = 0;
  const float* sinks = nullptr;  // [heads]; null: none
  LookBack look_back = {};
  int splits = 1;  // enough for the greatest position
  // Scratch: O [rows, heads, splits, head_dim], then m and l [rows, heads, splits] each.
  float* mixed = nullptr;
  float* greatest = nullptr;
  float* sum = nullptr;

  LLMQ_BLOCK int64_t first_visible(int64_t position) const { return look_back.first_seen(position); }
};

// Four warps are a group, which has strips of 16 pairs.
struct AttentionShape {
  int groups, strips;
  int slots;  // of the ring
  // pages are BF16 and heads a multiple of 16 bytes, which are copied; else numbers are converted
  bool plain;
};
constexpr AttentionShape kDecoding{1, 1, 4, true}, kPrefilling{2, 2, 3, true};
// Where shared memory has no room for more: sm_75 for 128 dimensions, sm_75, 86 and 89 for 256. Nothing is
// under way while 256 are computed.
constexpr AttentionShape small_shape(int dim, bool plain) { return {1, 1, dim <= 128 ? 2 : 1, plain}; }

template <int kDim, AttentionShape kShape>
struct SplitAttention {
  static_assert(kDim % 64 == 0);
  using Arguments = TileAttentionArguments;
  static constexpr int kStrips = kShape.strips, kSlots = kShape.slots, kThreads = kShape.groups * 128,
                       kBlockPairs = kShape.groups * kStrips * 16;
  static constexpr bool kWide = kBlockPairs == kWidePairs;
  static constexpr int kPerWide = kWidePairs / kPairs;  // narrow blocks of a wide tile
  static constexpr int kTogether = kWide && kDim <= 128 ? 2 : 1;
  static constexpr int kWords = kDim / 2, kChunks = kWords / 4;  // of a row; chunks of 16 bytes
  // Words of a row; 4 on: 16 bytes of eight rows lie in different banks.
  static constexpr int kStride = kWords + 4, kScoreStride = kTileKeys + 4, kShareStride = kTileKeys / 2 + 4,
                       kItem = kTileKeys * kStride;
  static constexpr int kProducts = kDim / 4 / 8;  // of a warp's dimensions, 8 at a time
  static_assert(kBlockPairs == (kWide ? kWidePairs : kPairs));

  struct Shared {
    Array<int64_t, kSplitKeys> places;  // of the split's positions: see find_places
    Array<uint32_t, kBlockPairs * kStride> q;
    Array<uint32_t, kSlots * kItem> ring;
    Array<float, kBlockPairs * kScoreStride> scores;
    Array<uint32_t, kBlockPairs * kShareStride> shares;
    Array<float, kBlockPairs> decay;
  };
  // of Shared on a device
  static constexpr int kSharedBytes =
      8 * kSplitKeys + 4 * (kSlots * kItem + kBlockPairs * (kStride + kScoreStride + kShareStride + 1));
  struct Weigh {
    float greatest, sum;  // of a pair; sum: of the thread's own keys
  };
  // Of a pair: the first position that it sees of the split, and how many.
  struct Sight {
    int first, count;
  };
  struct Registers {
    Sums mixed[kStrips][kProducts];
    Sums scores[kStrips][2];
    Sight sight[kStrips][2];  // of the pairs of its scores
    Weigh weigh[kStrips];
    FragmentA a;
    uint32_t b[kProducts / 2 > 1 ? kProducts / 2 : 1][4];  // of two operands
    float seen[8], tile_greatest, other;
  };
  using Threads = PerThread<Registers, kThreads>;

  // Where a block is: its tile of pairs, and the positions that some pair of it sees, counted from the
  // split's first.
  struct Place {
    AttentionTile tile;
    int group, kv_head, split;
    int first, last;
  };

  static Grid grid(const Arguments& a) {
    return {kWide ? a.wide_count : a.wide_count * kPerWide + (a.tile_count - a.wide_count), a.keys.kv_heads,
            a.splits};
  }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const Place place = place_of(block, a);
    if (place.first > place.last) return;
    Threads threads;
    const int first_tile = place.first / kTileKeys, items = 2 * (place.last / kTileKeys - first_tile + 1);
    block.each([&](int t) { find_places(a, place, shared, t); });
    block.barrier();
    for (int item = 0; item < kSlots - 1; ++item) fill(block, a, place, shared, item, items);
    block.each([&](int t) {
      start(a, place, threads[t], t);
      fetch_queries(a, place, shared, t);
    });
    for (int item = 0; item < items; item += 2) {
      arrive(block, a, place, shared, item, items);
      score(block, a, shared, threads, item, first_tile + item / 2);
      block.barrier();
      weigh(block, shared, threads);
      arrive(block, a, place, shared, item + 1, items);
      mix(block, shared, threads, item + 1);
    }
    block.template wait_copies<0>();
    finish(block, a, place, threads);
  }

 private:
  static LLMQ_BLOCK Place place_of(const Block<kThreads>& block, const Arguments& a) {
    const int64_t divided = kWide ? 0 : a.wide_count * kPerWide;  // blocks of wide tiles
    Place p{a.tiles[kWide               ? block.x
                    : block.x < divided ? block.x / kPerWide
                                        : block.x - divided + a.wide_count],
            a.heads / a.keys.kv_heads,
            block.y,
            block.z,
            0,
            -1};
    if (block.x < divided) p.tile.first_pair += block.x % kPerWide * kPairs;
    const int64_t pairs = int64_t{p.tile.rows} * p.group,
                  end = p.tile.first_pair + kBlockPairs < pairs ? p.tile.first_pair + kBlockPairs : pairs;
    if (p.tile.first_pair >= end) return p;
    const int64_t split_first = int64_t{p.split} * kSplitKeys,
                  last = p.tile.context + (end - 1) / p.group - split_first;
    const int64_t first = a.first_visible(p.tile.context + token_of(p, 0)) - split_first;
    p.first = static_cast<int>(first < 0 ? 0 : first < kSplitKeys ? first : kSplitKeys);
    p.last = static_cast<int>(last < 0 ? -1 : last < kSplitKeys ? last : kSplitKeys - 1);
    return p;
  }

  // The token of a pair, relative to first_row; at least rows where there is no such pair.
  static LLMQ_BLOCK int token_of(const Place& p, int pair) { return (p.tile.first_pair + pair) / p.group; }
  static LLMQ_BLOCK int head_of(const Place& p, int pair) {
    return p.kv_head * p.group + (p.tile.first_pair + pair) % p.group;
  }

  // In the block: the first pair of a thread's group, and which quarter of keys or dimensions its warp has.
  static LLMQ_BLOCK int group_pair(int t) { return t / 128 * (16 * kStrips); }
  static LLMQ_BLOCK int quarter(int t) { return t / kWarp % 4; }

  // Where a position's numbers begin: of plain pages in bytes, of others the slot; negative where no pair may
  // look.
  static LLMQ_BLOCK void find_places(const Arguments& a, const Place& p, Shared& shared, int t) {
    const auto size = static_cast<uint32_t>(a.keys.block_size);
    LLMQ_UNROLL
    for (int i = 0; i < kSplitKeys; i += kThreads) {
      const int position = i + t;
      int64_t place = -1;
      if (position >= p.first && position <= p.last) {
        const auto absolute = static_cast<uint32_t>(p.split * kSplitKeys + position);
        const int64_t slot = int64_t{a.tables[p.tile.first_block + absolute / size]} * size + absolute % size;
        place = kShape.plain ? a.keys.place(slot, p.kv_head) * 2 : slot;
      }
      shared.places.set(t, position, place);
    }
  }

  static LLMQ_BLOCK void start(const Arguments& a, const Place& p, Registers& r, int t) {
    LLMQ_UNROLL
    for (int s = 0; s < kStrips; ++s) {
      LLMQ_UNROLL
      for (int n = 0; n < kProducts; ++n) LLMQ_UNROLL
      for (int e = 0; e < 4; ++e) r.mixed[s][n].v[e] = 0;
      r.weigh[s] = {-INFINITY, 0};
      LLMQ_UNROLL
      for (int high = 0; high < 2; ++high) {
        const int64_t position =
                          p.tile.context + token_of(p, group_pair(t) + s * 16 + high * 8 + t % kWarp / 4),
                      split_first = int64_t{p.split} * kSplitKeys;
        int64_t first = a.first_visible(position) - split_first, last = position - split_first;
        first = first > p.first ? first : p.first;
        last = last < p.last ? last : p.last;
        r.sight[s][high] = {static_cast<int>(first), static_cast<int>(last < first ? 0 : last - first + 1)};
      }
    }
  }

  static LLMQ_BLOCK void fetch_queries(const Arguments& a, const Place& p, Shared& shared, int t) {
    for (int i = t; i < kBlockPairs * kChunks; i += kThreads) {
      const int pair = i / kChunks, first = i % kChunks * 8, token = token_of(p, pair);
      const float* const q =
          a.q + ((int64_t{p.tile.first_row} + token) * a.heads + head_of(p, pair)) * a.head_dim;
      const auto number = [&](int d) {
        return to_bfloat16(token < p.tile.rows && d < a.head_dim ? q[d] : 0.0f);
      };
      LLMQ_UNROLL
      for (int w = 0; w < 4; ++w)
        shared.q.set(t, pair * kStride + first / 2 + w,
                     word_of(number(first + 2 * w), number(first + 2 * w + 1)));
    }
  }

  static LLMQ_BLOCK void fill(const Block<kThreads>& block, const Arguments& a, const Place& p,
                              Shared& shared, int item, int items) {
    if (item < items)
      block.each([&](int t) {
        const int first = (p.first / kTileKeys + item / 2) * kTileKeys, to = item % kSlots * kItem;
        if constexpr (kShape.plain)
          copy_item(a, static_cast<const char*>(item % 2 == 0 ? a.keys.first : a.values.first), shared, t,
                    first, to);
        else
          convert_item(item % 2 == 0 ? a.keys : a.values, p, shared, t, first, to);
      });
    block.commit_copies();
  }

  static LLMQ_BLOCK void copy_item(const Arguments& a, const char* pages, Shared& shared, int t, int first,
                                   int to) {
    const int own = t / kChunks, chunk = t % kChunks;
    LLMQ_UNROLL
    for (int key = 0; key < kTileKeys; key += kThreads / kChunks) {
      const int64_t place = shared.places.get(t, first + own + key);
      const bool present = place >= 0 && chunk * 8 < a.head_dim;
      shared.ring.copy_async(t, to + (own + key) * kStride + chunk * 4,
                             pages + (present ? place + chunk * 16 : 0), present);
    }
  }

  static LLMQ_BLOCK void convert_item(const KvStore pages, const Place& p, Shared& shared, int t, int first,
                                      int to) {
    for (int i = t; i < kTileKeys * kChunks; i += kThreads) {
      const int key = i / kChunks, d = i % kChunks * 8;
      const int64_t slot = shared.places.get(t, first + key),
                    from = pages.place(slot < 0 ? 0 : slot, p.kv_head);
      float numbers[8] = {};
      if (slot >= 0 && pages.packed)
        kv_load_part<8>(pages.row, numbers, pages.bytes_at(from), d, pages.scale);
      else if (slot >= 0)
        for (int j = 0; j < 8 && d + j < pages.row.n; ++j) numbers[j] = pages.get(from, d + j);
      LLMQ_UNROLL
      for (int w = 0; w < 4; ++w)
        shared.ring.set(t, to + key * kStride + d / 2 + w,
                        word_of(to_bfloat16(numbers[2 * w]), to_bfloat16(numbers[2 * w + 1])));
    }
  }

  // This item has arrived for all, and all are done with the item whose place is filled next.
  static LLMQ_BLOCK void arrive(Block<kThreads>& block, const Arguments& a, const Place& p, Shared& shared,
                                int item, int items) {
    if constexpr (kSlots == 1) {
      block.barrier();
      fill(block, a, p, shared, item, items);
      block.template wait_copies<0>();
      block.barrier();
    } else {
      block.template wait_copies<kSlots - 2>();
      block.barrier();
      fill(block, a, p, shared, item + kSlots - 1, items);
    }
    block.converge();
  }

  static LLMQ_BLOCK void score(const Block<kThreads>& block, const Arguments& a, Shared& shared,
                               Threads& threads, int item, int tile) {
    block.each([&](int t) {
      LLMQ_UNROLL
      for (int s = 0; s < kStrips; ++s) LLMQ_UNROLL
      for (int n = 0; n < 2; ++n) LLMQ_UNROLL
      for (int e = 0; e < 4; ++e) threads[t].scores[s][n].v[e] = 0;
    });
    LLMQ_UNROLL
    for (int step = 0; step < kDim / 16; ++step) {
      block.template load_matrices<false>(
          [&](int t) -> uint32_t* { return threads[t].b[0]; }, shared.ring,
          [&](int t) {
            const int lane = t % kWarp, key = quarter(t) * 16 + lane / 16 * 8 + lane % 8;
            return item % kSlots * kItem + key * kStride + step * 8 + lane / 8 % 2 * 4;
          });
      LLMQ_UNROLL
      for (int s = 0; s < kStrips; ++s) {
        block.template load_matrices<false>([&](int t) -> uint32_t* { return threads[t].a.v; }, shared.q,
                                            [&](int t) {
                                              const int lane = t % kWarp,
                                                        pair = group_pair(t) + s * 16 + lane % 16;
                                              return pair * kStride + step * 8 + lane / 16 * 4;
                                            });
        LLMQ_UNROLL
        for (int n = 0; n < 2; ++n)
          block.multiply_bf16([&](int t) -> Sums& { return threads[t].scores[s][n]; },
                              [&](int t) -> const FragmentA& { return threads[t].a; },
                              [&](int t) {
                                return FragmentB{{threads[t].b[0][n * 2], threads[t].b[0][n * 2 + 1]}};
                              });
      }
    }
    block.each([&](int t) {
      LLMQ_UNROLL
      for (int s = 0; s < kStrips; ++s) LLMQ_UNROLL
      for (int n = 0; n < 2; ++n) LLMQ_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int lane = t % kWarp, pair = group_pair(t) + s * 16 + lane / 4 + e / 2 * 8,
                  key = quarter(t) * 16 + n * 8 + lane % 4 * 2 + e % 2;
        const Sight sight = threads[t].sight[s][e / 2];
        const bool visible =
            static_cast<uint32_t>(tile * kTileKeys + key - sight.first) < static_cast<uint32_t>(sight.count);
        shared.scores.set(
            t, pair * kScoreStride + key,
            visible ? scaled_score(threads[t].scores[s][n].v[e], a.scale, a.softcap) : -INFINITY);
      }
    });
  }

  // Thread t has pair t / 8 of a group's strip and of its keys those at t % 8 * 8 + 0 .. 7.
  static LLMQ_BLOCK void weigh(const Block<kThreads>& block, Shared& shared, Threads& threads) {
    LLMQ_UNROLL
    for (int s = 0; s < kStrips; ++s) {
      block.each([&](int t) {
        Registers& r = threads[t];
        r.tile_greatest = r.weigh[s].greatest;
        LLMQ_UNROLL
        for (int i = 0; i < 8; i += 4)
          shared.scores.get4(t, weighed_pair(t, s) * kScoreStride + t % 8 * 8 + i, r.seen + i);
        LLMQ_UNROLL
        for (int i = 0; i < 8; ++i) r.tile_greatest = fmaxf(r.tile_greatest, r.seen[i]);
      });
      LLMQ_UNROLL
      for (int mask = 1; mask < 8; mask *= 2) {
        block.exchange([&](int t) -> float& { return threads[t].other; },
                       [&](int t) { return threads[t].tile_greatest; }, mask);
        block.each(
            [&](int t) { threads[t].tile_greatest = fmaxf(threads[t].tile_greatest, threads[t].other); });
      }
      block.each([&](int t) {
        Registers& r = threads[t];
        // A pair that has seen no key yet keeps nothing and adds nothing.
        const bool blind = r.tile_greatest == -INFINITY;
        const float decay = blind ? 1.0f : expf(r.weigh[s].greatest - r.tile_greatest);
        float sum = r.weigh[s].sum * decay;
        LLMQ_UNROLL
        for (int i = 0; i < 8; ++i) {
          r.seen[i] = blind ? 0.0f : expf(r.seen[i] - r.tile_greatest);
          sum += r.seen[i];
        }
        r.weigh[s] = {r.tile_greatest, sum};
        LLMQ_UNROLL
        for (int w = 0; w < 4; ++w)
          shared.shares.set(t, weighed_pair(t, s) * kShareStride + t % 8 * 4 + w,
                            word_of(to_bfloat16(r.seen[2 * w]), to_bfloat16(r.seen[2 * w + 1])));
        if (t % 8 == 0) shared.decay.set(t, weighed_pair(t, s), decay);
      });
    }
  }
  static LLMQ_BLOCK int weighed_pair(int t, int strip) { return group_pair(t) + strip * 16 + t % 128 / 8; }

  static LLMQ_BLOCK void mix(const Block<kThreads>& block, const Shared& shared, Threads& threads, int item) {
    block.each([&](int t) {
      LLMQ_UNROLL
      for (int s = 0; s < kStrips; ++s) LLMQ_UNROLL
      for (int high = 0; high < 2; ++high) {
        const float decay = shared.decay.get(t, group_pair(t) + s * 16 + t % kWarp / 4 + high * 8);
        LLMQ_UNROLL
        for (int n = 0; n < kProducts; ++n) LLMQ_UNROLL
        for (int e = 0; e < 2; ++e) threads[t].mixed[s][n].v[high * 2 + e] *= decay;
      }
    });
    LLMQ_UNROLL
    for (int step = 0; step < kTileKeys / 16; ++step) {
      LLMQ_UNROLL
      for (int n = 0; n < kProducts / 2; ++n)
        block.template load_matrices<true>([&](int t) -> uint32_t* { return threads[t].b[n]; }, shared.ring,
                                           [&](int t) {
                                             const int lane = t % kWarp, key = step * 16 + lane % 16,
                                                       dim = quarter(t) * (kDim / 4) + n * 16 + lane / 16 * 8;
                                             return item % kSlots * kItem + key * kStride + dim / 2;
                                           });
      LLMQ_UNROLL
      for (int s = 0; s < kStrips; ++s) {
        block.template load_matrices<false>([&](int t) -> uint32_t* { return threads[t].a.v; }, shared.shares,
                                            [&](int t) {
                                              const int lane = t % kWarp,
                                                        pair = group_pair(t) + s * 16 + lane % 16;
                                              return pair * kShareStride + step * 8 + lane / 16 * 4;
                                            });
        LLMQ_UNROLL
        for (int n = 0; n < kProducts; ++n)
          block.multiply_bf16(
              [&](int t) -> Sums& { return threads[t].mixed[s][n]; },
              [&](int t) -> const FragmentA& { return threads[t].a; },
              [&](int t) {
                return FragmentB{{threads[t].b[n / 2][n % 2 * 2], threads[t].b[n / 2][n % 2 * 2 + 1]}};
              });
      }
    }
  }

  static LLMQ_BLOCK void finish(const Block<kThreads>& block, const Arguments& a, const Place& p,
                                Threads& threads) {
    LLMQ_UNROLL
    for (int s = 0; s < kStrips; ++s) {
      LLMQ_UNROLL
      for (int mask = 1; mask < 8; mask *= 2) {
        block.exchange([&](int t) -> float& { return threads[t].other; },
                       [&](int t) { return threads[t].weigh[s].sum; }, mask);
        block.each([&](int t) { threads[t].weigh[s].sum += threads[t].other; });
      }
      block.each([&](int t) {
        const Registers& r = threads[t];
        if (t % 8 == 0 && token_of(p, weighed_pair(t, s)) < p.tile.rows) {
          const int64_t at = part_of(a, p, weighed_pair(t, s));
          a.greatest[at] = r.weigh[s].greatest;
          a.sum[at] = r.weigh[s].sum;
        }
        LLMQ_UNROLL
        for (int high = 0; high < 2; ++high) {
          const int pair = group_pair(t) + s * 16 + t % kWarp / 4 + high * 8;
          if (token_of(p, pair) >= p.tile.rows) continue;
          float* const mixed = a.mixed + part_of(a, p, pair) * a.head_dim;
          LLMQ_UNROLL
          for (int n = 0; n < kProducts; ++n) LLMQ_UNROLL
          for (int e = 0; e < 2; ++e) {
            const int dim = quarter(t) * (kDim / 4) + n * 8 + t % 4 * 2 + e;
            if (dim < a.head_dim) mixed[dim] = r.mixed[s][n].v[high * 2 + e];
          }
        }
      });
    }
  }
  static LLMQ_BLOCK int64_t part_of(const Arguments& a, const Place& p, int pair) {
    return ((int64_t{p.tile.first_row} + token_of(p, pair)) * a.heads + head_of(p, pair)) * a.splits +
           p.split;
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
      if (a.sinks != nullptr) greatest = a.sinks[block.y];
      for (int64_t s = first; s <= last; ++s) greatest = fmaxf(greatest, a.greatest[s]);
      if (a.sinks != nullptr) sum = expf(a.sinks[block.y] - greatest);
      for (int64_t s = first; s <= last; ++s) sum = fmaf(expf(a.greatest[s] - greatest), a.sum[s], sum);
      for (int d = t; d < a.head_dim; d += kThreads) {
        float mixed = 0;
        for (int64_t s = first; s <= last; ++s)
          mixed = fmaf(expf(a.greatest[s] - greatest), a.mixed[s * a.head_dim + d], mixed);
        a.out[(int64_t{block.x} * a.heads + block.y) * a.head_dim + d] = to_bfloat16(mixed / sum);
      }
    });
  }
};

constexpr int kMostTileDim = 256;

template <int kDim, class Start>
int start_split_attention(TileAttentionArguments a, int64_t most_shared, const Start& start) {
  using Wide = SplitAttention<kDim, kPrefilling>;
  using Narrow = SplitAttention<kDim, kDecoding>;
  if (a.keys.packed || a.keys.element != Element::kBF16 || a.head_dim % 8 != 0)
    return start.template operator()<SplitAttention<kDim, small_shape(kDim, false)>>(a);
  if (a.wide_count > 0 && Wide::kSharedBytes <= most_shared) {
    if (const int failed = start.template operator()<Wide>(a)) return failed;
    a.tiles += a.wide_count, a.tile_count -= a.wide_count, a.wide_count = 0;
  }
  if (Narrow::kSharedBytes <= most_shared) return start.template operator()<Narrow>(a);
  return start.template operator()<SplitAttention<kDim, small_shape(kDim, true)>>(a);
}

// Both kernels; start.operator()<Kernel>(arguments) starts one, and gives 0 where that was accepted.
// most_shared: bytes that a block may have on this device.
template <class Start>
int start_tile_attention(const TileAttentionArguments& a, int64_t most_shared, const Start& start) {
  const int split = a.head_dim <= 64    ? start_split_attention<64>(a, most_shared, start)
                    : a.head_dim <= 128 ? start_split_attention<128>(a, most_shared, start)
                                        : start_split_attention<kMostTileDim>(a, most_shared, start);
  return split != 0 ? split : start.template operator()<MergeSplits>(a);
}

}  // namespace llmq::cuda
