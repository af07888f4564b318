// y[m][n] = (sum_g S(m, n, g) scale(n, g)) row_scale(m) + bias[n] by the matrix units, at any number of rows.
//
//   S(m, n, g) = sum over the columns k of group g of x[m][k] w[n][k]
//   kBFloat16   w BF16, one group, no scales: S is the product
//   kCodes4/8   w = code - zero, exact in BF16; x BF16
//   kFloat8     w = E4M3, exact in BF16; x BF16 (or E4M3 values in BF16: 8-bit inputs)
//   kInt8       w = code - zero with codes stored as code - 128; x INT8; S exact in INT32, the zeros taken out by the row's sum:
//               S = sum a (code - 128) - (zero - 128) sum a
// Sums over k and over groups are FP32, k after k in steps of a product's 16 (INT8: exact), groups rising, each added by one fused
// multiply-add: nothing depends on the number of rows, so row m of y is a function of row m of x.
//
// A block computes 16 kRowTiles rows x 64 features, a warp 16 of these. Stages, over tiles of 64 positions in a ring of kStages:
//   fill     copies of x's rows and of the warp's own tile of w (kernels/common/fragment_layout.h) to shared memory start
//   multiply fragments are read, codes become BF16, products are summed
//   fold     at a group's end: sums += S scale
// Cost: rows * padded features * positions products; w is read once per 16 kRowTiles rows.
#pragma once
#include "kernels/cuda/block.h"
#include "kernels/cuda/linear_arguments.h"

namespace llmq::cuda {

template <WeightForm kForm, int kRowTiles>
struct MmaLinear {
  using Arguments = LinearArguments;
  static constexpr bool kInteger = kForm == WeightForm::kInt8, kCodes = kForm == WeightForm::kCodes4 || kForm == WeightForm::kCodes8;
  static constexpr int kThreads = 128, kRows = 16 * kRowTiles;
  static constexpr int kDepth = kInteger ? 32 : 16, kSteps = 64 / kDepth;
  static constexpr int kBits = fragment_bits(kForm), kPerWord = 32 / kBits;
  static constexpr int kChunks = kBits / 4;  // of 16 bytes, that a lane multiplies of a tile
  static constexpr int kInputsPerWord = kInteger ? 4 : 2, kRowWords = 64 / kInputsPerWord;
  static constexpr int kRowStride = kRowWords + 4;  // 4 words on: the lanes of a fragment read from different banks
  // Decoding waits for weights: as many tiles are on their way as static shared memory has room for (4-bit codes 11, BF16 4).
  static constexpr int kTileBytes = 4 * (kRows * kRowStride + kThreads * kBits), kSharedBytes = 48 * 1024, kMostStages = 12;
  static constexpr int kRoom = kSharedBytes / kTileBytes, kStages = kRowTiles > 1 ? 2 : kRoom < kMostStages ? kRoom : kMostStages;
  using Sum = std::conditional_t<kInteger, IntegerSums, Sums>;

  struct Shared {
    Array<uint32_t, kStages * kRows * kRowStride> x;
    Array<uint32_t, kStages * kThreads * kBits> w;
  };
  static_assert(kStages >= 2 && kStages * kTileBytes <= kSharedBytes && sizeof(Shared) <= kSharedBytes);
  // Of one group: zeros where they are used (codes: those of the lane's features of operand B), scales and INT8's zeros of its sums' features.
  struct OfGroup {
    float zero[4], scale[4];
  };
  struct Registers {
    Sums sums[kRowTiles][2];
    Sum part[kRowTiles][2];
    FragmentA a[kRowTiles];
    FragmentB b[2];
    uint32_t chunk[4];
    OfGroup now, next;  // the next group's are on their way while a group is multiplied
  };
  struct Group {
    int64_t index, end;  // end: position
  };
  using Threads = PerThread<Registers, kThreads>;

  static Grid grid(const Arguments& a) {
    if (a.rows == 0) return {0};
    return {blocks_for(a.features, 64), static_cast<int>(blocks_for(a.rows, kRows))};
  }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const int tiles = static_cast<int>(a.positions / 64);
    Threads threads;
    Group group{0, a.padded_group};
    block.each([&](int t) {
      start(threads[t]);
      read_group(block, a, threads[t].now, t, 0);
      read_group(block, a, threads[t].next, t, 1);
    });
    for (int tile = 0; tile < kStages - 1; ++tile) fill(block, a, shared, tile, tiles);
    for (int tile = 0; tile < tiles; ++tile) {
      block.template wait_copies<kStages - 2>();
      block.barrier();  // this tile has arrived for all, and all are done with the tile whose place is filled next
      fill(block, a, shared, tile + kStages - 1, tiles);
      multiply(block, a, shared, threads, tile, group);
    }
    block.template wait_copies<0>();
    block.each([&](int t) { store(block, a, threads[t], t); });
  }

 private:
  static LLMQ_BLOCK void start(Registers& r) {
    LLMQ_UNROLL
    for (int i = 0; i < kRowTiles; ++i) LLMQ_UNROLL
      for (int half = 0; half < 2; ++half) LLMQ_UNROLL
        for (int e = 0; e < 4; ++e) r.sums[i][half].v[e] = 0, r.part[i][half].v[e] = 0;
  }

  static LLMQ_BLOCK void fill(Block<kThreads>& block, const Arguments& a, Shared& shared, int tile, int tiles) {
    if (tile < tiles) {
      const int stage = tile % kStages;
      block.each([&](int t) {
        const int lane = t % kWarp;
        const uint32_t* const from = a.weight + ((int64_t{block.x} * 4 + t / kWarp) * tiles + tile) * (kWarp * kBits);
        LLMQ_UNROLL
        for (int i = 0; i < kChunks; ++i) {
          const int chunk = i * kWarp + lane;  // of the warp's: an instruction copies 512 consecutive bytes
          shared.w.copy_async(t, weight_place(stage, chunk % kChunks, t - lane + chunk / kChunks), from + 4 * chunk, true);
        }
        for (int i = t; i < kRows * kRowWords / 4; i += kThreads) {
          const int row = i / (kRowWords / 4), word = i % (kRowWords / 4) * 4;
          fill_row(block, a, shared, t, row, word, stage, tile);
        }
      });
    }
    block.commit_copies();
  }

  // Of a chunk of thread t: [stage][chunk of a lane][lane], where the exclusive or keeps 8 lanes out of each other's banks both when they copy
  // chunks one after another and when they read one chunk each.
  static LLMQ_BLOCK int weight_place(int stage, int chunk, int t) {
    return ((stage * kChunks + chunk) * kThreads + (t ^ (chunk * (8 / kChunks)))) * 4;
  }

  // 16 bytes of a row: copied where they are all there, else gathered.
  static LLMQ_BLOCK void fill_row(Block<kThreads>& block, const Arguments& a, Shared& shared, int t, int row, int word, int stage, int tile) {
    const int64_t m = int64_t{block.y} * kRows + row, p = int64_t{tile} * 64 + word * kInputsPerWord;
    const int to = (stage * kRows + row) * kRowStride + word;
    if (a.x_aligned) {
      const bool present = m < a.rows && p < a.columns;
      const int64_t at = present ? m * a.x_stride + p : 0;
      if constexpr (kInteger)
        shared.x.copy_async(t, to, static_cast<const int8_t*>(a.x) + at, present);
      else
        shared.x.copy_async(t, to, static_cast<const BFloat16*>(a.x) + at, present);
    } else if constexpr (!kInteger) {
      for (int i = 0; i < 4; ++i) shared.x.set(t, to + i, word_of(input(a, m, p + 2 * i), input(a, m, p + 2 * i + 1)));
    }
  }

  static LLMQ_BLOCK BFloat16 input(const Arguments& a, int64_t m, int64_t position) {
    const int64_t place = position % a.padded_group, k = position / a.padded_group * a.group + place;
    if (m >= a.rows || place >= a.group || k >= a.columns) return {0};
    return static_cast<const BFloat16*>(a.x)[m * a.x_stride + k];
  }

  static LLMQ_BLOCK void multiply(Block<kThreads>& block, const Arguments& a, Shared& shared, Threads& threads, int tile,
                                  Group& group) {
    const int stage = tile % kStages;
    LLMQ_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int64_t p = int64_t{tile} * 64 + step * kDepth, next = p + kDepth;
      if (p >= a.used_positions) return;
      block.each([&](int t) {
        read_inputs(shared, threads[t], t, stage, step);
        read_weights(shared, threads[t], t, stage, step);
      });
      LLMQ_UNROLL
      for (int i = 0; i < kRowTiles; ++i) LLMQ_UNROLL
        for (int half = 0; half < 2; ++half) {
          const auto sums = [&](int t) -> Sum& { return threads[t].part[i][half]; };
          const auto left = [&](int t) -> const FragmentA& { return threads[t].a[i]; };
          const auto right = [&](int t) -> const FragmentB& { return threads[t].b[half]; };
          if constexpr (kInteger)
            block.mma_s8(sums, left, right);
          else
            block.mma_bf16(sums, left, right);
        }
      if (next >= a.used_positions || next == group.end) {
        block.each([&](int t) {
          fold(block, a, threads[t], t, group.index);
          threads[t].now = threads[t].next;
          read_group(block, a, threads[t].next, t, group.index + 2);
        });
        group = {group.index + 1, group.end + a.padded_group};
      }
    }
  }

  static LLMQ_BLOCK void read_group(const Block<kThreads>& block, const Arguments& a, OfGroup& r, int t, int64_t group) {
    if (group >= a.groups) return;
    LLMQ_UNROLL
    for (int half = 0; half < 2; ++half) {
      if constexpr (kCodes) r.zero[half] = a.zero[group * a.padded_features + feature(block, t, half, t % kWarp / 4)];
      LLMQ_UNROLL
      for (int column = 0; column < 2; ++column) {
        const int64_t at = group * a.padded_features + feature(block, t, half, t % kWarp % 4 * 2 + column);
        r.scale[half * 2 + column] = a.scale == nullptr ? 1.0f : a.scale[at];
        if constexpr (kInteger) r.zero[half * 2 + column] = a.zero == nullptr ? 128.0f : a.zero[at];
      }
    }
  }

  static LLMQ_BLOCK void read_inputs(const Shared& shared, Registers& r, int t, int stage, int step) {
    const int lane = t % kWarp;
    LLMQ_UNROLL
    for (int i = 0; i < kRowTiles; ++i) LLMQ_UNROLL
      for (int word = 0; word < 4; ++word) {
        const int row = i * 16 + lane / 4 + word % 2 * 8;
        r.a[i].v[word] = shared.x.get(t, (stage * kRows + row) * kRowStride + step * 8 + word / 2 * 4 + lane % 4);
      }
  }

  static LLMQ_BLOCK void read_weights(const Shared& shared, Registers& r, int t, int stage, int step) {
    constexpr int kElements = kDepth / 4, kWords = kElements * kBits / 32;  // of one half's fragment; 4-bit codes: half a word
    constexpr int kStepWords = kDepth * kBits / 64, kChunkSteps = 4 / kStepWords;
    if (step % kChunkSteps == 0) {  // 16 bytes at once, for as many steps as they hold
      const int at = weight_place(stage, step / kChunkSteps, t);
      LLMQ_UNROLL
      for (int i = 0; i < 4; ++i) r.chunk[i] = shared.w.get(t, at + i);
    }
    LLMQ_UNROLL
    for (int half = 0; half < 2; ++half) {
      if constexpr (kWords == 2) {
        LLMQ_UNROLL
        for (int i = 0; i < 2; ++i) r.b[half].v[i] = r.chunk[half * 2 + i];
      } else {
        const int element = (step * 2 + half) * kElements;
        const uint32_t codes = r.chunk[element / kPerWord % 4] >> (element % kPerWord * kBits);
        const float zero = kCodes ? r.now.zero[half] : 0.0f;
        LLMQ_UNROLL
        for (int i = 0; i < 2; ++i)
          r.b[half].v[i] = bfloat16_pair(value(codes >> (2 * i * kBits), zero), value(codes >> ((2 * i + 1) * kBits), zero));
      }
    }
  }

  static LLMQ_BLOCK float value(uint32_t code, float zero) {
    const uint32_t bits = code & ((1u << kBits % 32) - 1);
    if constexpr (kCodes) return float_from_bits(0x4b000000u | bits) - (0x1p23f + zero);  // 2^23 + code: both differences are exact
    return to_float(Float8{static_cast<uint8_t>(bits)});
  }

  static LLMQ_BLOCK int64_t feature(const Block<kThreads>& block, int t, int half, int column) {
    return int64_t{block.x} * 64 + t / kWarp * 16 + half * 8 + column;
  }
  static LLMQ_BLOCK int64_t row_of(const Block<kThreads>& block, int t, int i, int e) {
    return int64_t{block.y} * kRows + i * 16 + t % kWarp / 4 + e / 2 * 8;
  }

  static LLMQ_BLOCK void fold(const Block<kThreads>& block, const Arguments& a, Registers& r, int t, int64_t group) {
    LLMQ_UNROLL
    for (int half = 0; half < 2; ++half) LLMQ_UNROLL
      for (int column = 0; column < 2; ++column) {
        const int feature = half * 2 + column;
        LLMQ_UNROLL
        for (int i = 0; i < kRowTiles; ++i) LLMQ_UNROLL
          for (int high = 0; high < 2; ++high) {
            const int e = high * 2 + column;
            const int64_t m = row_of(block, t, i, e);
            float sum = 0;
            if constexpr (kInteger)
              sum = static_cast<float>(without_zero(a, r.part[i][half].v[e], m, group, r.now.zero[feature]));
            else
              sum = r.part[i][half].v[e];
            if (a.row_scales > 1) sum = sum * (m < a.rows ? a.row_scale[m * a.row_scales + group] : 0.0f);
            r.sums[i][half].v[e] = a.scale == nullptr ? sum : fmaf(sum, r.now.scale[feature], r.sums[i][half].v[e]);
            r.part[i][half].v[e] = 0;
          }
      }
  }

  // Modulo 2^32, as the sums may leave the range on the way to a difference that does not.
  static LLMQ_BLOCK int32_t without_zero(const Arguments& a, int32_t sum, int64_t m, int64_t group, float stored) {
    if (a.zero == nullptr || m >= a.rows) return sum;
    const auto zero = static_cast<int32_t>(stored) - 128;
    return static_cast<int32_t>(static_cast<uint32_t>(sum) -
                                static_cast<uint32_t>(zero) * static_cast<uint32_t>(a.row_sum[m * a.groups + group]));
  }

  static LLMQ_BLOCK void store(const Block<kThreads>& block, const Arguments& a, const Registers& r, int t) {
    LLMQ_UNROLL
    for (int i = 0; i < kRowTiles; ++i) LLMQ_UNROLL
      for (int half = 0; half < 2; ++half) LLMQ_UNROLL
        for (int e = 0; e < 4; ++e) {
          const int64_t m = row_of(block, t, i, e), n = feature(block, t, half, t % kWarp % 4 * 2 + e % 2);
          if (m >= a.rows || n >= a.features) continue;
          const float sum = r.sums[i][half].v[e], bias = a.bias == nullptr ? 0.0f : a.bias[n];
          a.y[m * a.y_stride + n] = a.row_scales == 1 ? fmaf(sum, a.row_scale[m], bias) : sum + bias;
        }
  }
};

}  // namespace llmq::cuda
