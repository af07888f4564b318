// Causal attention of the query heads of one KV head at consecutive positions, with an online softmax over
// tiles of 64 keys at absolute positions 0, 64, 128, ...
//
//   per tile: S = Q K^T * scale * log2 e;  m' = max S where that is above m + 8, else m;  P = 2^(S - m');
//   l = l 2^(m - m') + sum P;  O = O 2^(m - m') + P V;  at the end: out = O / l
//
// With a softcap, S = cap tanh(Q K^T scale / cap) log2 e, in a pass of its own. With sinks m begins as the
// sink of the head and l as 1.
//
// Rows are (position, head) pairs, so that GQA's heads and many positions share one packed tile of keys and
// of values; they pass it kRowBlock at a time, so that scores and shares stay in L1. A tile that a row cannot
// see is skipped or adds products of zero: neither changes the row. Few rows (decoding) read keys and values
// where they lie (kernels/cpu/kv_layout.h), in the same chains. In bf16 Q, K, P and V are BF16 and sums FP32;
// l sums the unrounded P, lane by lane until the end. scale > 0.
#pragma once
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/kv_layout.h"
#include "kernels/cpu/ops/gemm.h"
#include "kernels/cpu/ops/pack.h"
#include "kernels/cpu/ops/rows.h"

namespace llmq {

constexpr int kKeyTile = 64;
constexpr int kRowBlock = 24;  // whole register tiles at every level
// Shares may grow to 2^8 before O and l are rescaled: floating point loses nothing by it, and rows are
// rescaled once or twice instead of at every new maximum (the condition of FlashAttention-4).
constexpr float kHeadroom = 8;

LLMQ_INLINE size_t aligned64(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Where the pieces of the scratch memory lie; `next` ends as its size.
template <class V, class T>
struct AttentionScratch {
  size_t depth, width;  // head_dim padded to whole units, to whole panels
  size_t q, scores, shares, out, max, sum, row, keys, values, key_panels, value_panels, next = 0;

  LLMQ_INLINE AttentionScratch(int positions, int group, int head_dim) {
    constexpr size_t kPanel = V::kPanelVectors * V::kLanes;
    const size_t rows = static_cast<size_t>(positions) * static_cast<size_t>(group),
                 dim = static_cast<size_t>(head_dim);
    depth = (dim + 1) / 2 * 2;
    width = (dim + kPanel - 1) / kPanel * kPanel;
    q = take(rows * depth * sizeof(T));
    scores = take(kRowBlock * kKeyTile * sizeof(float));
    shares = take(kRowBlock * kKeyTile * sizeof(T));
    out = take(rows * width * sizeof(float));
    max = take(rows * sizeof(float));
    sum = take(rows * V::kLanes * sizeof(float));
    row = take(dim * sizeof(float));
    keys = take(kKeyTile * depth * sizeof(T));
    values = take(kKeyTile * width * sizeof(T));
    key_panels = take(kKeyTile * depth * sizeof(T));
    value_panels = take(kKeyTile * width * sizeof(T));
  }
  LLMQ_INLINE size_t take(size_t bytes) {
    const size_t at = next;
    next += aligned64(bytes);
    return at;
  }
};

template <class V, class T>
struct AttentionRun {
  static constexpr int kPanel = V::kPanelVectors * V::kLanes, kPerUnit = 4 / sizeof(T);
  static constexpr int kPanelsAtOnce = V::kLanes >= kSlotTile ? 2 : 1;  // of O, where rows are few
  const AttentionTile& t;
  AttentionScratch<V, T> at;
  KvLayout layout;
  int64_t rows;

  LLMQ_INLINE explicit AttentionRun(const AttentionTile& tile)
      : t(tile),
        at(tile.positions, tile.group, tile.head_dim),
        layout{tile.block_size, tile.kv_heads, tile.head_dim,
               tile.pages == CpuFormat::kF32 ? int64_t{1} : int64_t{2}},
        rows(static_cast<int64_t>(tile.positions) * tile.group) {}

  template <class P>
  LLMQ_INLINE P* piece(size_t offset) const {
    return reinterpret_cast<P*>(t.scratch + offset);
  }

  LLMQ_INLINE void start() const {
    const int64_t depth = static_cast<int64_t>(at.depth), dim = t.head_dim;
    for (int64_t r = 0; r < rows; ++r) {
      const float* from = t.q + r / t.group * t.q_row + r % t.group * dim;
      T* to = piece<T>(at.q) + r * depth;
      convert<V>(to, from, dim);
      for (int64_t d = dim; d < depth; ++d) to[d] = T{};
      piece<float>(at.max)[r] =
          -3e38f;  // finite: exp(-inf - max) stays 0 for a row that has seen nothing yet
    }
    __builtin_memset(t.scratch + at.sum, 0, static_cast<size_t>(rows) * V::kLanes * sizeof(float));
    // A sink is a key that every row has seen already: its share is 1, its value 0.
    if (t.sinks != nullptr)
      for (int64_t r = 0; r < rows; ++r) {
        const float sink = t.sinks[r % t.group] * kLog2E;
        piece<float>(at.max)[r] = sink < -3e38f ? -3e38f : sink;
        piece<float>(at.sum)[r * V::kLanes] = 1;
      }
    __builtin_memset(t.scratch + at.out, 0, static_cast<size_t>(rows) * at.width * sizeof(float));
  }

  // Whether the pages hold whole tiles of what the products take.
  LLMQ_INLINE bool as_panels() const {
    return !t.packed && (t.pages == CpuFormat::kF32) == (sizeof(T) == 4) && t.block_size % kSlotTile == 0 &&
           t.head_dim % kPerUnit == 0;
  }
  LLMQ_INLINE int64_t tile_at(int64_t position) const {
    return layout.tile(t.block_table[position / t.block_size], t.kv_head, position % t.block_size);
  }
  // The tile of 16 positions that begins at `position`.
  LLMQ_INLINE const unsigned char* keys_at(int64_t position) const {
    return reinterpret_cast<const unsigned char*>(static_cast<const T*>(t.keys) + tile_at(position));
  }
  LLMQ_INLINE const unsigned char* values_at(int64_t position) const {
    return reinterpret_cast<const unsigned char*>(static_cast<const T*>(t.values) + tile_at(position));
  }

  // One tile's keys and values out of pages that hold them unit by unit. Keys from `count` on are whatever
  // was there: their scores are masked. Values from `count` on are zero.
  LLMQ_INLINE void copy_panels(int64_t first_key, int64_t count) const {
    constexpr int64_t kPiece = kPanel < kSlotTile ? kPanel : kSlotTile, kTileUnits = kSlotTile / kPerUnit;
    const int64_t units = t.head_dim / kPerUnit, dim = t.head_dim, width = static_cast<int64_t>(at.width);
    unsigned char* const keys = t.scratch + at.key_panels;
    unsigned char* const values = t.scratch + at.value_panels;
    for (int64_t j = 0; j < count; j += kSlotTile) {
      const unsigned char* from = keys_at(first_key + j);
      for (int64_t u = 0; u < units; ++u)
        for (int64_t n = j; n < j + kSlotTile; n += kPiece, from += 4 * kPiece)
          __builtin_memcpy(keys + 4 * (n / kPanel * kPanel * units + u * kPanel + n % kPanel), from,
                           4 * kPiece);
      from = values_at(first_key + j);
      for (int64_t u = j / kPerUnit; u < j / kPerUnit + kTileUnits; ++u, from += 4 * dim)
        for (int64_t n = 0; n < width; n += kPanel)
          copy_values(values + 4 * (n * (kKeyTile / kPerUnit) + u * kPanel), from + 4 * n, dim - n);
    }
    for (int64_t u = count / kPerUnit; u < kKeyTile / kPerUnit; ++u)
      for (int64_t n = 0; n < width; ++n) {
        unsigned char* const unit =
            values + 4 * (n / kPanel * kPanel * (kKeyTile / kPerUnit) + u * kPanel + n % kPanel);
        const uint32_t kept = u * kPerUnit < count ? half_unit(unit) : 0;
        __builtin_memcpy(unit, &kept, 4);
      }
  }
  static LLMQ_INLINE void copy_values(unsigned char* to, const unsigned char* from, int64_t left) {
    if (left >= kPanel) {
      __builtin_memcpy(to, from, 4 * kPanel);
    } else {
      __builtin_memcpy(to, from, static_cast<size_t>(4 * left));
      __builtin_memset(to + 4 * left, 0, static_cast<size_t>(4 * (kPanel - left)));
    }
  }

  // The same for any block size and pages of either format: element by element into rows, zero beyond
  // `count`, then packed.
  template <class Page>
  LLMQ_INLINE void gather(int64_t first_key, int64_t count) const {
    const int64_t depth = static_cast<int64_t>(at.depth), width = static_cast<int64_t>(at.width),
                  dim = t.head_dim;
    T* const keys = piece<T>(at.keys);
    T* const values = piece<T>(at.values);
    const Page* const from_keys = static_cast<const Page*>(t.keys);
    const Page* const from_values = static_cast<const Page*>(t.values);
    for (int64_t j = 0; j < kKeyTile; ++j) {
      const bool seen = j < count;
      if (seen) {
        const int64_t block = t.block_table[(first_key + j) / t.block_size],
                      p = (first_key + j) % t.block_size;
        Page* const row = piece<Page>(at.row);
        for (int64_t d = 0; d < dim; ++d) row[d] = from_keys[layout.key(block, t.kv_head, p, d)];
        take_row(keys + j * depth, row, dim);
        for (int64_t d = 0; d < dim; ++d) row[d] = from_values[layout.value(block, t.kv_head, p, d)];
        take_row(values + j * width, row, dim);
      }
      pad(keys, values, j, seen);
    }
    pack(keys, values);
  }

  // Of a packed row among its pages' rows.
  LLMQ_INLINE int64_t place_at(int64_t position) const {
    const int64_t block = t.block_table[position / t.block_size];
    return (block * t.kv_heads + t.kv_head) * t.block_size + position % t.block_size;
  }

  // `gather` from pages of packed rows.
  template <KvFormat kKeys, KvFormat kValues, int64_t kDim>
  LLMQ_INLINE void gather_packed(int64_t first_key, int64_t count) const {
    const int64_t depth = static_cast<int64_t>(at.depth), width = static_cast<int64_t>(at.width),
                  dim = kDim > 0 ? kDim : t.head_dim;
    const KvRow of_keys{kKeys, dim}, of_values{kValues, dim};
    T* const keys = piece<T>(at.keys);
    T* const values = piece<T>(at.values);
    float* const row = piece<float>(at.row);
    for (int64_t j = 0; j < kKeyTile; ++j) {
      const bool seen = j < count;
      if (seen) {
        const int64_t place = place_at(first_key + j);
        kv_load_row(of_keys, row, static_cast<const unsigned char*>(t.keys) + place * of_keys.bytes(),
                    t.key_scale);
        take_row(keys + j * depth, row, dim);
        kv_load_row(of_values, row, static_cast<const unsigned char*>(t.values) + place * of_values.bytes(),
                    t.value_scale);
        take_row(values + j * width, row, dim);
      }
      pad(keys, values, j, seen);
    }
    pack(keys, values);
  }
  // Loops over the usual sizes of a head are unrolled.
  template <KvFormat kKeys, KvFormat kValues>
  LLMQ_INLINE void gather_packed(int64_t first_key, int64_t count) const {
    if (t.head_dim == 64) return gather_packed<kKeys, kValues, 64>(first_key, count);
    if (t.head_dim == 128) return gather_packed<kKeys, kValues, 128>(first_key, count);
    gather_packed<kKeys, kValues, 0>(first_key, count);
  }
  LLMQ_INLINE void gather_any_packed(int64_t first_key, int64_t count) const {
    if (t.key_row.format == KvFormat::kInt8)
      return gather_packed<KvFormat::kInt8, KvFormat::kInt8>(first_key, count);
    if (t.key_row.format == KvFormat::kInt5)
      return gather_packed<KvFormat::kInt5, KvFormat::kInt4>(first_key, count);
    if (t.key_row.format == KvFormat::kFloat16)
      return gather_packed<KvFormat::kFloat16, KvFormat::kFloat16>(first_key, count);
    if (t.key_row.format == KvFormat::kFloat8)
      return gather_packed<KvFormat::kFloat8, KvFormat::kFloat8>(first_key, count);
    gather_packed<KvFormat::kFloat8E5M2, KvFormat::kFloat8E5M2>(first_key, count);
  }

  // Row j is zero behind its last dimension, or throughout.
  LLMQ_INLINE void pad(T* keys, T* values, int64_t j, bool seen) const {
    const int64_t depth = static_cast<int64_t>(at.depth), width = static_cast<int64_t>(at.width),
                  dim = t.head_dim;
    for (int64_t d = seen ? dim : 0; d < depth; ++d) keys[j * depth + d] = T{};
    for (int64_t d = seen ? dim : 0; d < width; ++d) values[j * width + d] = T{};
  }
  LLMQ_INLINE void pack(const T* keys, const T* values) const {
    const int64_t depth = static_cast<int64_t>(at.depth), width = static_cast<int64_t>(at.width);
    for (int64_t n = 0; n < kKeyTile; n += kPanel)
      pack_panel<V, T>(piece<T>(at.key_panels) + n * depth, keys + n * depth, depth, kPanel, depth);
    for (int64_t n = 0; n < width; n += kPanel)
      pack_panel_straight<V, T>(piece<T>(at.value_panels) + n * kKeyTile, values + n, width, kPanel,
                                kKeyTile);
  }
  static LLMQ_INLINE void take_row(T* to, const T* from, int64_t n) {
    __builtin_memcpy(to, from, static_cast<size_t>(n) * sizeof(T));
  }
  template <class Page>
  static LLMQ_INLINE void take_row(T* to, const Page* from, int64_t n) {
    convert<V>(to, from, n);
  }

  // Few rows read the pages where they lie.
  static constexpr int kFewRows = 4, kTiles = V::kLanes >= kSlotTile ? 4 : 1;
  LLMQ_INLINE bool in_place() const {
    return V::kLanes > 1 && rows <= kRowBlock && t.head_dim % (kPanel * kPanelsAtOnce) == 0 && as_panels();
  }

  // Rows from first_row on against the keys of kTiles tiles: the chains of `gemm`.
  template <class Product, int Rows>
  LLMQ_INLINE void score_in_place(int64_t first_row, float* scores, int64_t first_key, int64_t count) const {
    constexpr int kVectors = kSlotTile / V::kLanes;
    const int64_t depth = static_cast<int64_t>(at.depth), units = t.head_dim / kPerUnit;
    for (int64_t j = 0; j < count; j += kTiles * kSlotTile) {
      const unsigned char* from[kTiles];
      for (int64_t i = 0; i < kTiles; ++i) {
        const int64_t key = j + i * kSlotTile < count ? j + i * kSlotTile : j;  // what is not there is masked
        from[i] = keys_at(first_key + key);
      }
      typename V::F acc[Rows][kTiles][kVectors];
      each_sum<Rows, kTiles, kVectors>([&](auto r, auto i, auto v) LLMQ_LAMBDA_INLINE {
        acc[decltype(r)::value][decltype(i)::value][decltype(v)::value] = V::set(0.0f);
      });
      const unsigned char* q = t.scratch + at.q + first_row * depth * static_cast<int64_t>(sizeof(T));
      for (int64_t u = 0; u < units; ++u, q += 4)
        unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE {
          constexpr int kR = decltype(r)::value;
          const auto input = Product::broadcast(whole_unit(q + kR * depth * static_cast<int64_t>(sizeof(T))));
          unroll<kTiles>([&](auto i) LLMQ_LAMBDA_INLINE {
            unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
              constexpr int kI = decltype(i)::value, kV = decltype(v)::value;
              acc[kR][kI][kV] = Product::add(acc[kR][kI][kV], input,
                                             Product::load(from[kI] + 4 * (u * kSlotTile + kV * V::kLanes)));
            });
          });
        });
      each_sum<Rows, kTiles, kVectors>([&](auto r, auto i, auto v) LLMQ_LAMBDA_INLINE {
        constexpr int kR = decltype(r)::value, kI = decltype(i)::value, kV = decltype(v)::value;
        V::store(scores + kR * kKeyTile + j + kI * kSlotTile + kV * V::kLanes, acc[kR][kI][kV]);
      });
    }
  }

  // O += P V for the rows from first_row on.
  template <class Product, int Rows>
  LLMQ_INLINE void add_in_place(int64_t first_row, const T* shares, int64_t first_key, int64_t count) const {
    constexpr int kVectors = V::kPanelVectors * kPanelsAtOnce;
    const int64_t width = static_cast<int64_t>(at.width), dim = t.head_dim;
    float* const out = piece<float>(at.out) + first_row * width;
    // the unit of an odd last position, its other half zero
    unsigned char* const last = t.scratch + at.values;
    if (kPerUnit == 2 && count % 2 != 0) {
      const unsigned char* const from =
          values_at(first_key + count - 1) + 4 * ((count - 1) % kSlotTile / kPerUnit) * dim;
      for (int64_t d = 0; d < dim; ++d) {
        const uint32_t unit = half_unit(from + 4 * d);
        __builtin_memcpy(last + 4 * d, &unit, 4);
      }
    }
    for (int64_t n = 0; n < dim; n += kVectors * V::kLanes) {
      typename V::F acc[Rows][kVectors];
      const auto each = [&](const auto& body) LLMQ_LAMBDA_INLINE {
        unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE {
          unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
            constexpr int kR = decltype(r)::value, kV = decltype(v)::value;
            body(acc[kR][kV], out + kR * width + n + kV * V::kLanes);
          });
        });
      };
      each([](typename V::F& sum, float* p) LLMQ_LAMBDA_INLINE { sum = V::load(p); });
      const auto step = [&](const unsigned char* values, const unsigned char* share) LLMQ_LAMBDA_INLINE {
        unroll<Rows>([&](auto r) LLMQ_LAMBDA_INLINE {
          constexpr int kR = decltype(r)::value;
          const auto input =
              Product::broadcast(whole_unit(share + kR * kKeyTile * static_cast<int64_t>(sizeof(T))));
          unroll<kVectors>([&](auto v) LLMQ_LAMBDA_INLINE {
            constexpr int kV = decltype(v)::value;
            acc[kR][kV] = Product::add(acc[kR][kV], input, Product::load(values + 4 * (n + kV * V::kLanes)));
          });
        });
      };
      const unsigned char* share = reinterpret_cast<const unsigned char*>(shares);
      for (int64_t j = 0; j < count; j += kSlotTile) {
        const unsigned char* values = values_at(first_key + j);
        const int64_t whole = (count - j < kSlotTile ? count - j : kSlotTile) / kPerUnit;
        for (int64_t u = 0; u < whole; ++u, values += 4 * dim, share += 4) step(values, share);
      }
      if (kPerUnit == 2 && count % 2 != 0) step(last, share);
      each([](const typename V::F& sum, float* p) LLMQ_LAMBDA_INLINE { V::store(p, sum); });
    }
  }

  template <int A, int B, int C, class Body>
  static LLMQ_INLINE void each_sum(const Body& body) {
    unroll<A>([&](auto a) LLMQ_LAMBDA_INLINE {
      unroll<B>([&](auto b)
                    LLMQ_LAMBDA_INLINE { unroll<C>([&](auto c) LLMQ_LAMBDA_INLINE { body(a, b, c); }); });
    });
  }

  template <class Product, int Rows>
  __attribute__((noinline)) void meet_few(int64_t first_row, int64_t first_key, int64_t known) const {
    score_in_place<Product, Rows>(first_row, piece<float>(at.scores), first_key, known);
    soften<Product>(first_row, Rows, first_key);
    add_in_place<Product, Rows>(first_row, piece<T>(at.shares), first_key, known);
  }

  template <class Product, int Rows>
  LLMQ_INLINE void meet_in_place(int64_t row, int64_t end, int64_t first_key, int64_t known) const {
    for (; row + Rows <= end; row += Rows) meet_few<Product, Rows>(row, first_key, known);
    if constexpr (Rows > 1) meet_in_place<Product, Rows - 1>(row, end, first_key, known);
  }

  // The online softmax's step for a block of rows, in two passes so that neither waits for the other's long
  // chains: each row's maximum (where it is far above the last one, O's row and l are rescaled), then the
  // exponentials.
  template <class Product>
  LLMQ_INLINE void soften(int64_t first_row, int64_t count, int64_t first_key) const {
    constexpr int kVectors = kKeyTile / V::kLanes;
    float* const scores = piece<float>(at.scores);
    float* const max = piece<float>(at.max) + first_row;
    float* const sums = piece<float>(at.sum) + first_row * V::kLanes;
    if (t.softcap > 0) cap(scores, count);
    mask(scores, first_row, count, first_key);
    const float factor = (t.softcap > 0 ? 1.0f : t.scale) * kLog2E;
    const auto scale = V::set(factor);
    for (int64_t r = 0; r < count; ++r) {
      auto greatest = V::load(scores + r * kKeyTile);
      for (int v = 1; v < kVectors; ++v)
        greatest = V::max(greatest, V::load(scores + r * kKeyTile + v * V::kLanes));
      if (!V::any_greater(V::mul(greatest, scale), V::set(max[r] + kHeadroom))) continue;
      const float row_greatest = V::greatest(greatest) * factor;
      const auto correction = exp2_f32<V>(V::set(max[r] - row_greatest));
      max[r] = row_greatest;
      float* const out = piece<float>(at.out) + (first_row + r) * static_cast<int64_t>(at.width);
      for (int64_t d = 0; d < static_cast<int64_t>(at.width); d += V::kLanes)
        V::store(out + d, V::mul(V::load(out + d), correction));
      V::store(sums + r * V::kLanes, V::mul(V::load(sums + r * V::kLanes), correction));
    }
    T* const shares = piece<T>(at.shares);
    for (int64_t r = 0; r < count; ++r) {
      const auto shift = V::set(-max[r]);
      auto total = V::load(sums + r * V::kLanes);
      for (int64_t i = r * kKeyTile; i < (r + 1) * kKeyTile; i += V::kLanes) {
        const auto share = exp2_f32<V>(V::fma(V::load(scores + i), scale, shift));
        total = V::add(total, share);
        Product::store(shares + i, share);
      }
      V::store(sums + r * V::kLanes, total);
    }
  }

  // Scores as they are with a softcap; what is masked afterwards may be anything.
  LLMQ_INLINE void cap(float* scores, int64_t count) const {
    const auto most = V::set(t.softcap), part = V::set(t.scale / t.softcap);
    for (int64_t i = 0; i < count * kKeyTile; i += V::kLanes)
      V::store(scores + i, V::mul(most, tanh_f32<V>(V::mul(V::load(scores + i), part))));
  }

  // -inf where a row must not look: keys after its own position, keys its window has passed.
  LLMQ_INLINE void mask(float* scores, int64_t first_row, int64_t count, int64_t first_key) const {
    const int64_t earliest = t.first_position + first_row / t.group - first_key,
                  latest = t.first_position + (first_row + count - 1) / t.group - first_key;
    if (earliest >= kKeyTile - 1 && t.look_back.first_seen(first_key + latest) <= first_key) return;
    for (int64_t r = 0; r < count; ++r, scores += kKeyTile) {
      const int64_t last = t.first_position + (first_row + r) / t.group - first_key;
      const int64_t first = t.look_back.first_seen(first_key + last) - first_key;
      for (int64_t j = last + 1; j < kKeyTile; ++j) scores[j] = -__builtin_inff();
      for (int64_t j = 0; j < first && j < kKeyTile; ++j) scores[j] = -__builtin_inff();
    }
  }

  // Rows [first_row, first_row + count), at most kRowBlock, against the packed tile.
  template <class Product>
  LLMQ_INLINE void meet(int64_t first_row, int64_t count, int64_t first_key) const {
    const int64_t depth = static_cast<int64_t>(at.depth), width = static_cast<int64_t>(at.width);
    GemmPanel g;
    g.rows = count;
    g.columns = kPanel;
    g.a = piece<T>(at.q) + first_row * depth;
    g.a_row = depth * static_cast<int64_t>(sizeof(T));
    g.depth = depth;
    g.c_row = kKeyTile;
    for (int64_t n = 0; n < kKeyTile; n += kPanel) {
      g.b = piece<T>(at.key_panels) + n * depth;
      g.c = piece<float>(at.scores) + n;
      gemm_one_panel<V, Product>(g);
    }
    soften<Product>(first_row, count, first_key);
    g.a = piece<T>(at.shares);
    g.a_row = kKeyTile * static_cast<int64_t>(sizeof(T));
    g.depth = kKeyTile;
    g.c_row = width;
    g.accumulate = true;
    for (int64_t n = 0; n < width; n += kPanel) {
      g.b = piece<T>(at.value_panels) + n * kKeyTile;
      g.c = piece<float>(at.out) + first_row * width + n;
      gemm_one_panel<V, Product>(g);
    }
  }

  // The tile after the one at `first_key` comes into L2 while this one is met: pages lie anywhere, and the
  // processor's own prefetch ends with each.
  LLMQ_INLINE void fetch_next(int64_t first_key) const {
    int64_t end = t.first_position + t.positions;
    if (end > first_key + 2 * kKeyTile) end = first_key + 2 * kKeyTile;
    const int64_t at_once = t.block_size < kSlotTile ? t.block_size : kSlotTile;
    for (int64_t key = first_key + kKeyTile; key < end; key += at_once) {
      if (t.packed) {
        const int64_t place = place_at(key);
        fetch(static_cast<const unsigned char*>(t.keys) + place * t.key_row.bytes(),
              at_once * t.key_row.bytes());
        fetch(static_cast<const unsigned char*>(t.values) + place * t.value_row.bytes(),
              at_once * t.value_row.bytes());
      } else {
        fetch(keys_at(key), at_once * t.head_dim * static_cast<int64_t>(sizeof(T)));
        fetch(values_at(key), at_once * t.head_dim * static_cast<int64_t>(sizeof(T)));
      }
    }
  }
  static LLMQ_INLINE void fetch(const unsigned char* from, int64_t bytes) {
    for (int64_t at_byte = 0; at_byte < bytes; at_byte += 64) __builtin_prefetch(from + at_byte, 0, 2);
  }

  template <class Product>
  LLMQ_INLINE void visit(int64_t first_key) const {
    // Rows that see anything of this tile: positions from first_key on, and before the window has passed it.
    int64_t from = first_key - t.first_position, to = t.positions;
    if (t.look_back.positions > 0) {
      const int64_t end = t.look_back.last_seeing(first_key + kKeyTile - 1) + 1 - t.first_position;
      if (end < to) to = end;
    }
    if (from < 0) from = 0;
    if (from >= to) return;
    int64_t known = t.first_position + t.positions - first_key;
    if (known > kKeyTile) known = kKeyTile;
    if constexpr (V::kLanes > 1)
      if (in_place()) {
        fetch_next(first_key);
        return meet_in_place<Product, kFewRows>(from * t.group, to * t.group, first_key, known);
      }
    if (t.packed) {
      fetch_next(first_key);
      gather_any_packed(first_key, known);
    } else if (as_panels())
      copy_panels(first_key, known);
    else if (t.pages == CpuFormat::kF32)
      gather<float>(first_key, known);
    else
      gather<BFloat16>(first_key, known);
    for (int64_t r = from * t.group; r < to * t.group; r += kRowBlock) {
      const int64_t left = to * t.group - r;
      meet<Product>(r, left < kRowBlock ? left : kRowBlock, first_key);
    }
  }

  LLMQ_INLINE void finish() const {
    const int64_t width = static_cast<int64_t>(at.width), dim = t.head_dim;
    for (int64_t r = 0; r < rows; ++r) {
      const float* const from = piece<float>(at.out) + r * width;
      T* const to = static_cast<T*>(t.out) + r / t.group * t.out_row + r % t.group * dim;
      const auto sum = V::set(V::sum(V::load(piece<float>(at.sum) + r * V::kLanes)));
      by_lanes<V>(dim, [&](int64_t d, auto n)
                           LLMQ_LAMBDA_INLINE { write<V>(to + d, V::div(V::load(from + d), sum), n); });
    }
  }
};

template <class V, class Product, class T>
void attention(const AttentionTile& tile) {
  const AttentionRun<V, T> run(tile);
  run.start();
  const int64_t first = tile.look_back.first_seen(tile.first_position);
  for (int64_t key = first / kKeyTile * kKeyTile; key < tile.first_position + tile.positions; key += kKeyTile)
    run.template visit<Product>(key);
  run.finish();
}

template <class V>
size_t attention_scratch(int positions, int group, int head_dim) {
  return AttentionScratch<V, float>(positions, group, head_dim).next;  // the wider of the two formats
}

}  // namespace llmq
