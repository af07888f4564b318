// y[m][n] = (sum_g S(m, n, g) scale(n, g)) row_scale(m) + bias[n] by the matrix units, at any number of rows.
//
//   S(m, n, g) = sum over the columns k of group g of x[m][k] w[n][k]
//   kBFloat16   w BF16, one group, no scales: S is the product
//   kCodes4/8   w = code - zero, exact in BF16; x BF16
//   kFloat4     w = E2M1, exact in BF16, and scales of a byte each (float_groups.h); x BF16 (or, as floats in
//               groups, code * level in BF16)
//   kFloat8     w = E4M3, exact in BF16; x BF16 (or E4M3 values in BF16: 8-bit inputs)
//   kInt8       w = code - zero with codes stored as code - 128; x INT8; S exact in INT32, the zeros taken
//               out by the row's sum: S = sum a (code - 128) - (zero - 128) sum a
// Sums over k and over groups are FP32, k after k in steps of a product's 16 (INT8: exact), groups rising,
// each added by one fused multiply-add: nothing depends on the number of rows or on the shape of a block, so
// row m of y is a function of row m of x.
//
// A block computes rows x features as its LinearShape says (linear_shape.h), a warp a part of them. Stages,
// over spans of positions in a ring of kStages:
//   fill     copies of x's rows and of w's tiles (kernels/common/fragment_layout.h) to shared memory start
//   multiply fragments are read, codes become BF16, products are summed
//   fold     at a group's end: sums += S scale
// Cost: rows * padded features * positions products; w is read once per block of rows, x once per block of
// features. A step of the widest shape is 32 products of a warp for 8 reads of shared memory, of 16 bytes a
// lane.
#pragma once
#include "kernels/cuda/block.h"
#include "kernels/cuda/linear_shape.h"

namespace llmq::cuda {

template <WeightForm kForm, LinearShape kShape>
struct MmaLinear {
  using Arguments = LinearArguments;
  static constexpr bool kInteger = kForm == WeightForm::kInt8,
                        kCodes = kForm == WeightForm::kCodes4 || kForm == WeightForm::kCodes8,
                        kBytes = kForm == WeightForm::kFloat4;  // of scales
  // else what a sum lacks is put to it at the end
  static constexpr bool kGrouped = kForm != WeightForm::kBFloat16 && !kShape.one_group;
  static constexpr int kWarps = kShape.row_warps * kShape.feature_warps, kThreads = kWarps * kWarp;
  // of a warp: 16 rows, 16 features, 8 features each
  static constexpr int kRowTiles = kShape.row_tiles, kPairs = kShape.pairs, kHalves = 2 * kPairs;
  static constexpr int kRows = 16 * kRowTiles * kShape.row_warps,
                       kFeatureTiles = kPairs * kShape.feature_warps, kFeatures = 16 * kFeatureTiles;
  static constexpr int kSpan = kShape.span, kDepth = product_depth(kForm), kSteps = kSpan / kDepth;
  static constexpr int kBits = fragment_bits(kForm), kPerWord = 32 / kBits;
  // of 16 bytes, that a lane multiplies of a tile, of a span
  static constexpr int kTileChunks = kBits / 4, kChunks = kTileChunks * kSpan / 64;
  static constexpr int kInputsPerWord = kInteger ? 4 : 2, kInputBytes = 4 / kInputsPerWord,
                       kRowWords = kSpan / kInputsPerWord;
  // 4 words on: 16 bytes of eight rows lie in different banks
  static constexpr int kRowStride = kRowWords + 4;
  // words of a span
  static constexpr int kRowPlaces = kRows * kRowStride, kWeightPlaces = kFeatureTiles * kChunks * kWarp * 4;
  // Decoding waits for weights: as many spans are on their way as there is room for.
  static constexpr int kRoom = kShape.shared_bytes / (4 * (kRowPlaces + kWeightPlaces)),
                       kStages = kRoom < kShape.most_stages ? kRoom : kShape.most_stages;
  using Sum = std::conditional_t<kInteger, IntegerSums, Sums>;

  struct Shared {
    Array<uint32_t, kStages * kRowPlaces> x;
    Array<uint32_t, kStages * kWeightPlaces> w;
  };
  static constexpr int kSharedBytes = 4 * kStages * (kRowPlaces + kWeightPlaces);  // of Shared on a device
  static_assert(kStages >= 2 && kSteps >= 1 && kChunks >= 1 && kSharedBytes <= kShape.shared_bytes);
  // Of one group: zeros where they are used (codes: those of the lane's features of operand B), scales and
  // INT8's zeros of its sums' features; bytes of scales by two.
  struct Numbers {
    float zero[kInteger ? 2 * kHalves : kHalves], scale[2 * kHalves];
  };
  struct Bytes {
    uint16_t scale[kHalves];
  };
  using OfGroup = std::conditional_t<kBytes, Bytes, Numbers>;
  using StoredScale = std::conditional_t<kBytes, uint16_t, float>;
  // Where registers allow it the next group's are on their way while a group is multiplied.
  static constexpr bool kAhead = kPairs == 1;
  struct Nothing {};
  struct Scaling {
    Sums sums[kRowTiles][kHalves];
    OfGroup now;
    std::conditional_t<kAhead, OfGroup, Nothing> next;
    uint32_t minus_zero[kHalves];  // 4-bit codes: minus (128 + zero), as a pair
    int tiles_left;                // of the block's tiles of features
    // of the lane's features, of the group to be read next; null where there are none
    const float* zeros;
    const StoredScale* scales;
  };
  // What a thread copies of the span at position 0: the first 16 bytes, and how much of x and w lies from
  // there on.
  struct Source {
    const char* row;
    const uint32_t* weight;
    int rows_left, columns_left, tiles_left;
  };
  struct Registers {
    Sum part[kRowTiles][kHalves];
    FragmentA a[kRowTiles];
    FragmentB b[kHalves];
    uint32_t chunk[kPairs][4];
    std::conditional_t<kGrouped, Scaling, Nothing> scaling;
    Source source;
  };
  struct Group {
    int index, end;  // end: position
  };
  using Threads = PerThread<Registers, kThreads>;

  static Grid grid(const Arguments& a) {
    if (a.rows == 0) return {0};
    return {blocks_for(a.features, kFeatures), static_cast<int>(blocks_for(a.rows, kRows))};
  }

  static LLMQ_BLOCK void run(Block<kThreads>& block, const Arguments& a, Shared& shared) {
    const int spans = static_cast<int>(a.positions) / kSpan;
    Threads threads;
    Group group{0, static_cast<int>(a.padded_group)};
    block.each([&](int t) {
      start(block, a, threads[t], t);
      if constexpr (kGrouped) {
        Scaling& s = threads[t].scaling;
        read_group(a, s, s.now, t, 0);
        if constexpr (kAhead) read_group(a, s, s.next, t, 1);
        use_zeros(s);
      }
    });
    for (int span = 0; span < kStages - 1; ++span) fill(block, a, shared, threads, span, spans, span);
    for (int span = 0, stage = 0, filled = kStages - 1; span < spans; ++span) {
      // This span has arrived for all, and all are done with the span whose place is filled next.
      block.template wait_copies<kStages - 2>();
      block.barrier();
      fill(block, a, shared, threads, span + kStages - 1, spans, filled);
      block.converge();
      multiply(block, a, shared, threads, span, stage, group);
      filled = stage;
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    block.template wait_copies<0>();
    block.each([&](int t) { store(block, a, threads[t], t); });
  }

 private:
  // First of the warp's tiles of features in the block, and its first row.
  static LLMQ_BLOCK int warp_tile(int t) { return t / kWarp % kShape.feature_warps * kPairs; }
  static LLMQ_BLOCK int warp_row(int t) { return t / kWarp / kShape.feature_warps * (16 * kRowTiles); }

  // copies of a row, of a tile of features
  static constexpr int kRowChunks = kRowWords / 4, kOfTile = kWarp * kChunks;

  static LLMQ_BLOCK void start(const Block<kThreads>& block, const Arguments& a, Registers& r, int t) {
    LLMQ_UNROLL
    for (int i = 0; i < kRowTiles; ++i) LLMQ_UNROLL
    for (int half = 0; half < kHalves; ++half) LLMQ_UNROLL
    for (int e = 0; e < 4; ++e) {
      r.part[i][half].v[e] = 0;
      if constexpr (kGrouped) r.scaling.sums[i][half].v[e] = 0;
    }
    const int64_t row = int64_t{block.y} * kRows + t / kRowChunks,
                  tile = int64_t{block.x} * kFeatureTiles + t / kOfTile;
    const int word = t % kRowChunks * 4, of_tile = t % kOfTile;
    r.source.row = static_cast<const char*>(a.x) + row * a.x_stride * kInputBytes + word * 4;
    r.source.rows_left = static_cast<int>(a.rows - row);
    r.source.columns_left = static_cast<int>(a.columns) - word * kInputsPerWord;
    r.source.weight = a.weight + tile * (a.positions / 64 * kWarp * kBits) + of_tile / kChunks * kBits +
                      of_tile % kChunks * 4;
    r.source.tiles_left = static_cast<int>(a.padded_features / 16 - tile);
    if constexpr (kGrouped) {
      const int64_t feature = first_feature(block, t, 0);
      r.scaling.tiles_left = static_cast<int>(a.padded_features / 16 - int64_t{block.x} * kFeatureTiles);
      r.scaling.zeros =
          a.zero == nullptr ? nullptr : a.zero + (feature + (kCodes ? t % kWarp / 4 : t % kWarp % 4 * 2));
      const StoredScale* const scales = stored_scales(a);
      r.scaling.scales = scales == nullptr ? nullptr : scales + (feature + t % kWarp % 4 * 2) / kOfStored;
    }
  }

  static LLMQ_BLOCK void fill(Block<kThreads>& block, const Arguments& a, Shared& shared,
                              const Threads& threads, int span, int spans, int stage) {
    if (span < spans)
      block.each([&](int t) {
        fill_weights(a, shared, threads[t].source, t, span, stage);
        if constexpr (kShape.aligned_rows)
          fill_rows(a, shared, threads[t].source, t, span, stage);
        else
          gather_rows(block, a, shared, t, span, stage);
      });
    block.commit_copies();
  }

  // A thread copies 16 bytes of a tile, its neighbour the next 16.
  static LLMQ_BLOCK void fill_weights(const Arguments& a, Shared& shared, const Source& source, int t,
                                      int span, int stage) {
    const int64_t tile_row = a.positions / 64 * (kWarp * kBits);
    const int64_t before =
        int64_t{span * kSpan / 64} * (kWarp * kBits) + span * kSpan % 64 / (64 / kTileChunks) * 4;
    LLMQ_UNROLL
    for (int i = 0; i < kFeatureTiles * kOfTile / kThreads; ++i) {
      // of this copy, on from the first
      const int tile = i * kThreads / kOfTile, lane = i * kThreads % kOfTile / kChunks;
      const bool present = kFeatureTiles <= 4 || tile < source.tiles_left;
      shared.w.copy_async(
          t,
          stage * kWeightPlaces + weight_place(t / kOfTile + tile, t % kChunks, t % kOfTile / kChunks + lane),
          source.weight + (tile * tile_row + before + lane * kBits), present);
    }
  }

  // [tile of features][chunk of a lane][lane], where the exclusive or keeps 8 lanes out of each other's banks
  // both when they copy chunks one after another and when they read one chunk each.
  static LLMQ_BLOCK int weight_place(int tile, int chunk, int lane) {
    return ((tile * kChunks + chunk) * kWarp + (lane ^ (chunk * (8 / kChunks)))) * 4;
  }

  static LLMQ_BLOCK void fill_rows(const Arguments& a, Shared& shared, const Source& source, int t, int span,
                                   int stage) {
    constexpr int kStep = kThreads / kRowChunks;  // rows from one copy to the next
    if (kStep > kRows && t / kRowChunks >= kRows) return;
    const int64_t before = int64_t{span} * (kSpan * kInputBytes);
    const bool columns = span * kSpan < source.columns_left;
    LLMQ_UNROLL
    for (int row = 0; row < kRows; row += kStep)
      shared.x.copy_async_near(
          t, stage * kRowPlaces + (t / kRowChunks + row) * kRowStride + t % kRowChunks * 4,
          source.row + (row * a.x_stride * kInputBytes + before), columns && row < source.rows_left);
  }

  static LLMQ_BLOCK void gather_rows(const Block<kThreads>& block, const Arguments& a, Shared& shared, int t,
                                     int span, int stage) {
    for (int i = t; i < kRows * kRowWords; i += kThreads) {
      const int row = i / kRowWords, word = i % kRowWords;
      const int64_t m = int64_t{block.y} * kRows + row, p = int64_t{span} * kSpan + word * 2;
      shared.x.set(t, stage * kRowPlaces + row * kRowStride + word,
                   word_of(input(a, m, p), input(a, m, p + 1)));
    }
  }
  static LLMQ_BLOCK BFloat16 input(const Arguments& a, int64_t m, int64_t position) {
    const int64_t place = position % a.padded_group, k = position / a.padded_group * a.group + place;
    if (m >= a.rows || place >= a.group || k >= a.columns) return {0};
    return static_cast<const BFloat16*>(a.x)[m * a.x_stride + k];
  }

  // Spans that end with the columns or across a group's end are multiplied with a question at each step, all
  // others without.
  static LLMQ_BLOCK void multiply(Block<kThreads>& block, const Arguments& a, Shared& shared,
                                  Threads& threads, int span, int stage, Group& group) {
    const int used = static_cast<int>(a.used_positions), first = span * kSpan, end = first + kSpan;
    const auto ends_group = [&](int next) { return kGrouped && (next >= used || next == group.end); };
    if (end - kDepth < used && (!kGrouped || end <= group.end)) {
      LLMQ_UNROLL
      for (int step = 0; step < kSteps; ++step) multiply_step(block, shared, threads, stage, step);
      if (ends_group(end)) next_group(block, a, threads, group);
      return;
    }
    LLMQ_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int p = first + step * kDepth;
      if (p >= used) return;
      multiply_step(block, shared, threads, stage, step);
      if (ends_group(p + kDepth)) next_group(block, a, threads, group);
    }
  }

  static LLMQ_BLOCK void multiply_step(Block<kThreads>& block, Shared& shared, Threads& threads, int stage,
                                       int step) {
    read_inputs(block, shared, threads, stage, step);
    block.each([&](int t) { read_weights(shared, threads[t], t, stage, step); });
    LLMQ_UNROLL
    for (int i = 0; i < kRowTiles; ++i) LLMQ_UNROLL
    for (int half = 0; half < kHalves; ++half) {
      const auto sums = [&](int t) -> Sum& { return threads[t].part[i][half]; };
      const auto left = [&](int t) -> const FragmentA& { return threads[t].a[i]; };
      const auto right = [&](int t) -> const FragmentB& { return threads[t].b[half]; };
      if constexpr (kInteger)
        block.multiply_s8(sums, left, right);
      else
        block.multiply_bf16(sums, left, right);
    }
  }

  static LLMQ_BLOCK void next_group(Block<kThreads>& block, const Arguments& a, Threads& threads,
                                    Group& group) {
    if constexpr (kGrouped) {
      block.each([&](int t) {
        Scaling& s = threads[t].scaling;
        fold(block, a, threads[t], t, group.index);
        if constexpr (kAhead) s.now = s.next;
        if constexpr (kAhead)
          read_group(a, s, s.next, t, group.index + 2);
        else
          read_group(a, s, s.now, t, group.index + 1);
        use_zeros(s);
      });
      block.converge();
      group = {group.index + 1, group.end + static_cast<int>(a.padded_group)};
    }
  }

  static constexpr int kOfStored = kBytes ? 2 : 1;  // features
  static LLMQ_BLOCK const StoredScale* stored_scales(const Arguments& a) {
    if constexpr (kBytes)
      return a.scale_bytes;
    else
      return a.scale;
  }

  static LLMQ_BLOCK void read_group(const Arguments& a, Scaling& s, OfGroup& into, int t, int group) {
    if (group >= static_cast<int>(a.groups)) return;
    LLMQ_UNROLL
    for (int half = 0; half < kHalves; ++half) {
      // whole warps: sums that nobody keeps
      if (kFeatureTiles > 4 && warp_tile(t) + half / 2 >= s.tiles_left) continue;
      if constexpr (kCodes) into.zero[half] = s.zeros[half * 8];
      if constexpr (kBytes) {
        into.scale[half] = s.scales[half * 4];
      } else {
        LLMQ_UNROLL
        for (int column = 0; column < 2; ++column) {
          into.scale[half * 2 + column] = kCodes || s.scales != nullptr ? s.scales[half * 8 + column] : 1.0f;
          if constexpr (kInteger)
            into.zero[half * 2 + column] = s.zeros == nullptr ? 128.0f : s.zeros[half * 8 + column];
        }
      }
    }
    if (s.zeros != nullptr) s.zeros += a.padded_features;
    if (s.scales != nullptr) s.scales += a.padded_features / kOfStored;
  }
  // Once they have arrived: here, not where they are asked for.
  static LLMQ_BLOCK void use_zeros(Scaling& s) {
    if constexpr (kForm == WeightForm::kCodes4) LLMQ_UNROLL
    for (int half = 0; half < kHalves; ++half)
      s.minus_zero[half] = bfloat16_pair(-128.0f - s.now.zero[half], -128.0f - s.now.zero[half]);
  }

  static LLMQ_BLOCK void read_inputs(const Block<kThreads>& block, const Shared& shared, Threads& threads,
                                     int stage, int step) {
    LLMQ_UNROLL
    for (int i = 0; i < kRowTiles; ++i)
      block.template load_matrices<false>(
          [&](int t) -> uint32_t* { return threads[t].a[i].v; }, shared.x,
          [&](int t) {
            const int lane = t % kWarp, row = warp_row(t) + i * 16 + lane % 16;
            return stage * kRowPlaces + row * kRowStride + step * 8 + lane / 16 * 4;
          });
  }

  static LLMQ_BLOCK void read_weights(const Shared& shared, Registers& r, int t, int stage, int step) {
    // words of a step, of both halves; steps of a chunk
    constexpr int kStepWords = kDepth * kBits / 64, kChunkSteps = 4 / kStepWords;
    LLMQ_UNROLL
    for (int pair = 0; pair < kPairs; ++pair) {
      if (step % kChunkSteps == 0)  // 16 bytes at once, for as many steps as they hold
        shared.w.get4(
            t, stage * kWeightPlaces + weight_place(warp_tile(t) + pair, step / kChunkSteps, t % kWarp),
            r.chunk[pair]);
      const uint32_t* const words = r.chunk[pair] + step % kChunkSteps * kStepWords;
      LLMQ_UNROLL
      for (int half = 0; half < 2; ++half) LLMQ_UNROLL
      for (int i = 0; i < 2; ++i) r.b[pair * 2 + half].v[i] = operand(r, words, pair, half, i);
    }
  }

  // Word i of operand B: as it lies, or of two codes.
  static LLMQ_BLOCK uint32_t operand(const Registers& r, const uint32_t* words, int pair, int half, int i) {
    // 128 + code is BF16's 0x4300 + code, and the difference to 128 + zero exact
    if constexpr (kForm == WeightForm::kCodes4) {
      return add_pairs(masked_or(words[0] >> (4 * (2 * half + i)), 0x000f000fu, 0x43004300u),
                       r.scaling.minus_zero[pair * 2 + half]);
    } else if constexpr (kForm == WeightForm::kFloat4) {
      // sign, exponent and fraction are put where BF16 has its own: 2^-126 of the numbers
      const uint32_t codes = words[0] << (12 - 4 * (2 * half + i));  // the upper four of 16 bits
      return multiply_pairs(masked_or(codes >> 6, 0x01c001c0u, codes & 0x80008000u), 0x7e807e80u);
    } else if constexpr (kForm == WeightForm::kCodes8) {  // 2^23 + code: both differences are exact
      const float zero = r.scaling.now.zero[pair * 2 + half];
      const auto value = [&](int byte) {
        return float_from_bits(0x4b000000u | (words[half] >> (8 * byte) & 0xffu)) - (0x1p23f + zero);
      };
      return bfloat16_pair(value(2 * i), value(2 * i + 1));
    } else if constexpr (kForm == WeightForm::kFloat8) {
      const auto value = [&](int byte) {
        return to_float(Float8{static_cast<uint8_t>(words[half] >> (8 * byte))});
      };
      return bfloat16_pair(value(2 * i), value(2 * i + 1));
    } else {
      return words[half * 2 + i];
    }
  }

  static LLMQ_BLOCK int64_t first_feature(const Block<kThreads>& block, int t, int half) {
    return int64_t{block.x} * kFeatures + warp_tile(t) * 16 + half * 8;
  }
  static LLMQ_BLOCK int64_t row_of(const Block<kThreads>& block, int t, int i, int e) {
    return int64_t{block.y} * kRows + warp_row(t) + i * 16 + t % kWarp / 4 + e / 2 * 8;
  }

  // S of a group; stored_zero: of INT8.
  static LLMQ_BLOCK float sum_of(const Arguments&, float part, int64_t, int64_t, float) { return part; }
  static LLMQ_BLOCK float sum_of(const Arguments& a, int32_t part, int64_t m, int64_t group,
                                 float stored_zero) {
    return static_cast<float>(without_zero(a, part, m, group, stored_zero));
  }

  // Of the lane's features.
  static LLMQ_BLOCK float zero_of(const OfGroup& group, int feature) {
    if constexpr (kInteger)
      return group.zero[feature];
    else
      return 0;
  }
  static LLMQ_BLOCK float scale_of(const Arguments& a, const OfGroup& group, int feature) {
    if constexpr (kBytes)
      return a.scale_of_byte(group.scale[feature / 2] >> (8 * (feature % 2)) & 0xffu);
    else
      return group.scale[feature];
  }

  static LLMQ_BLOCK void fold(const Block<kThreads>& block, const Arguments& a, Registers& r, int t,
                              int64_t group) {
    LLMQ_UNROLL
    for (int half = 0; half < kHalves; ++half) LLMQ_UNROLL
    for (int column = 0; column < 2; ++column) {
      const int feature = half * 2 + column;
      const float scale = scale_of(a, r.scaling.now, feature);
      LLMQ_UNROLL
      for (int i = 0; i < kRowTiles; ++i) LLMQ_UNROLL
      for (int high = 0; high < 2; ++high) {
        const int e = high * 2 + column;
        const int64_t m = row_of(block, t, i, e);
        float sum = sum_of(a, r.part[i][half].v[e], m, group, zero_of(r.scaling.now, feature));
        if (!kCodes && !kBytes && a.row_scales > 1)
          sum = sum * (m < a.rows ? a.row_scale[m * a.row_scales + group] : 0.0f);
        float& total = r.scaling.sums[i][half].v[e];
        total = !kCodes && !kBytes && a.scale == nullptr ? sum : fmaf(sum, scale, total);
        r.part[i][half].v[e] = 0;
      }
    }
  }

  // Modulo 2^32, as the sums may leave the range on the way to a difference that does not.
  static LLMQ_BLOCK int32_t without_zero(const Arguments& a, int32_t sum, int64_t m, int64_t group,
                                         float stored) {
    if (a.zero == nullptr || m >= a.rows) return sum;
    const auto zero = static_cast<int32_t>(stored) - 128;
    return static_cast<int32_t>(static_cast<uint32_t>(sum) -
                                static_cast<uint32_t>(zero) *
                                    static_cast<uint32_t>(a.row_sum[m * a.groups + group]));
  }

  static LLMQ_BLOCK void store(const Block<kThreads>& block, const Arguments& a, const Registers& r, int t) {
    LLMQ_UNROLL
    for (int i = 0; i < kRowTiles; ++i) LLMQ_UNROLL
    for (int half = 0; half < kHalves; ++half) LLMQ_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int64_t m = row_of(block, t, i, e), n = first_feature(block, t, half) + t % kWarp % 4 * 2 + e % 2;
      if (m >= a.rows || n >= a.features) continue;
      float sum = 0;
      if constexpr (kGrouped) {
        sum = r.scaling.sums[i][half].v[e];
      } else {
        sum = sum_of(a, r.part[i][half].v[e], m, 0, a.zero == nullptr ? 128.0f : a.zero[n]);
        if (a.scale != nullptr) sum = fmaf(sum, a.scale[n], 0.0f);
      }
      const float bias = a.bias == nullptr ? 0.0f : a.bias[n];
      a.y[m * a.y_stride + n] = a.row_scales == 1 ? fmaf(sum, a.row_scale[m], bias) : sum + bias;
    }
  }
};

}  // namespace llmq::cuda
